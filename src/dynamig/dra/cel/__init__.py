"""CEL selectors of DRA, evaluated as Kubernetes evaluates them (decision 0008)."""

from dynamig.dra.cel.reads import Read
from dynamig.dra.cel.selector import Selector, compile_selector
from dynamig.dra.cel.values import CelError

__all__ = ["CelError", "Read", "Selector", "compile_selector"]
