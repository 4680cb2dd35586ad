"""Which requests are for devices of a driver, as far as DeviceClasses tell. Pure, from API objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.protocol import names

Object = Mapping[str, Any]

OF_CLASS = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass is (ResourceDeviceClassPrefix in k8s.io/api resource/v1)."""

OF_NVIDIA = "nvidia.com/"
"""Prefix of what pods ask NVIDIA's device plugin for: `nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What may be for a device of `driver`. `classes`: DeviceClasses; None if they may not be read.

    Selectors of a request or of its class name the driver, as all published classes do. A class that nobody has says
    nothing; then it counts for the usual driver, so that a pod with a misspelt class is not hidden.
    """

    driver: str
    classes: Sequence[Object] | None

    def claims(self, spec: Object | None) -> bool:
        """Whether a claim with this spec asks for one."""
        for request in ((spec or {}).get("devices") or {}).get("requests") or ():
            for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                if exact and (self._named(exact) or self._of_class(exact.get("deviceClassName", ""))):
                    return True
        return False

    def resources(self, pod: Object) -> list[str]:
        """Extended resources of the pod that ask for one, by name."""
        spec = pod.get("spec") or {}
        containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        needs = [c.get("resources") or {} for c in containers]
        return sorted({r for n in needs for of in ("limits", "requests") for r in n.get(of) or () if self._resource(r)})

    def backed(self, resource: str) -> bool:
        """Whether a DeviceClass turns this extended resource into a claim; True if nobody could look."""
        return self.classes is None or self._backing(resource) is not None

    def _resource(self, name: str) -> bool:
        if (backing := self._backing(name)) is not None:
            return self._named(backing.get("spec"))
        return name.startswith((OF_NVIDIA, OF_CLASS)) and self.driver == names.DRIVER_NAME

    def _backing(self, resource: str) -> Object | None:
        for one in self.classes or ():
            if resource in (one["spec"].get("extendedResourceName"), OF_CLASS + one["metadata"]["name"]):
                return one
        return None

    def _of_class(self, name: str) -> bool:
        found = next((c for c in self.classes or () if c["metadata"]["name"] == name), None)
        return self.driver == names.DRIVER_NAME if found is None else self._named(found.get("spec"))

    def _named(self, has_selectors: Object | None) -> bool:
        texts = _expressions(has_selectors)
        return any(f"{quote}{self.driver}{quote}" in text for text in texts for quote in "'\"")


def _expressions(has_selectors: Object | None) -> Iterator[str]:
    selectors = (has_selectors or {}).get("selectors") or ()
    return (s["cel"]["expression"] for s in selectors if s.get("cel"))
