"""Container Device Interface: what a claim's containers get, as specification values and as files."""

from dynamig.cdi.files import SpecFiles
from dynamig.cdi.spec import ContainerEdits, Mount, claim_spec, device_id, device_names

__all__ = ["ContainerEdits", "Mount", "SpecFiles", "claim_spec", "device_id", "device_names"]
