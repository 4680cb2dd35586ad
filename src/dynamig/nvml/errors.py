"""NVML return codes, translated once into what a caller can do about them.

Source: nvml.h return lists; nvidia-smi's wording for the same codes; MIG user guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from dynamig.errors import DynamigError, Refused, Unavailable

_REFUSED = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (
        "INVALID",
        "the driver version may not know this profile or placement",
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (
        "NOT_SUPPORTED",
        "check MIG mode and that the GPU is not a vGPU guest's",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "NO_PERMISSION",
        "run as root, or give access to the mig/config capability",
    ),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: ("NO_ROOM", "see `dynamig gpus` for what occupies the GPU"),
}

_UNAVAILABLE = {
    pynvml.NVML_ERROR_IN_USE: (
        "IN_USE",
        "a process or a monitor holds it; find it with `nvidia-smi` or `fuser`",
    ),
    pynvml.NVML_ERROR_NOT_FOUND: ("NOT_FOUND", "it is not on the hardware any more"),
    pynvml.NVML_ERROR_GPU_IS_LOST: ("GPU_LOST", "the GPU has fallen off the bus; see the kernel log"),
    pynvml.NVML_ERROR_TIMEOUT: ("NVML_TIMEOUT", "NVML gave up waiting; it is tried again"),
}


def translate(error: pynvml.NVMLError, what: str) -> DynamigError:
    """The family for one NVML error; the code that NVML gave stays in the text."""
    number = int(error.value)
    told = f"{what}: NVML says {error} ({number})"
    if number in _REFUSED:
        code, next_step = _REFUSED[number]
        return Refused(code, told, next_step)
    code, next_step = _UNAVAILABLE.get(number, ("NVML_UNAVAILABLE", "it is tried again"))
    return Unavailable(code, told, next_step)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of NVML leave this block as errors of ours, chained."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise translate(error, what) from error
