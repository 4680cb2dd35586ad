"""Slurm's GPU index to the GPU itself (PROTOCOL P6). Run by the driver, read by the bridge from the node's Lease.

Slurm numbers the GPUs of a node in the order of its gres.conf, by device file, and knows no UUID; NVML knows UUIDs and
minors. Minors move when MIG mode is switched or a GPU is replaced, so a map is made once, checked, kept on disk, and
never changed under a loan or a claim that was decided by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.gpus import GpuReading

VERSION = 1


class Source(Enum):
    """Where a map comes from."""

    CONFIG_MAP = "config-map"
    """The administrator wrote it, in the cluster's ConfigMap."""
    GIVEN = "given"
    """The administrator wrote it, in the driver's configuration file."""
    MINORS = "minors"
    """NVML's minors in ascending order: right where gres.conf lists /dev/nvidia0, /dev/nvidia1, ... as they come."""


@dataclass(frozen=True, slots=True)
class Given:
    """What administrators say of a node. `gpus`: Slurm index to GPU UUID or PCI bus id, None for NVML's minors;
    `source`: where that stands."""

    slurm_node: str
    gpus: Mapping[int, str] | None = None
    source: Source = Source.MINORS


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """`gpus`: Slurm index to GPU; `slurm_node`: the node's name in Slurm, empty in a map of a driver that kept none."""

    gpus: Mapping[int, GpuUuid]
    source: Source
    slurm_node: str = ""

    def gpu(self, index: int) -> GpuUuid:
        """Raises Refused UNKNOWN_INDEX: an index that is not in the map is not lendable."""
        if index not in self.gpus:
            known = ", ".join(map(str, sorted(self.gpus))) or "none"
            raise Refused(
                "UNKNOWN_INDEX",
                f"Slurm's GPU index {index} is not in this node's device map (known: {known})",
                "compare gres.conf with `dynamig driver map`",
            )
        return self.gpus[index]

    def index(self, gpu: GpuUuid) -> int | None:
        return next((i for i, known in self.gpus.items() if known == gpu), None)

    def check_order(self, readings: Iterable[GpuReading]) -> None:
        """A map by minors still agrees with them, as far as GPUs answer.

        Raises Refused MAP_OUTDATED: Slurm would hand out another GPU's device file under the same index.
        """
        if self.source is not Source.MINORS:
            return
        places = {gpu: i for i, gpu in self.gpus.items()}
        now = [places[r.uuid] for r in sorted(readings, key=lambda r: r.minor) if r.uuid in places]
        if now != sorted(now):
            raise Refused(
                "MAP_OUTDATED",
                "the GPUs' device files have changed places since this node's device map was made",
                f"give the map in the ConfigMap {names.GPU_MAP}, by UUID, or reboot the node while it is drained",
            )


NO_MAP = DeviceMap(MappingProxyType({}), Source.MINORS)
"""Knows no index: nothing can be held or lent by it."""


def make_map(
    readings: Iterable[GpuReading],
    given: Given,
    last: DeviceMap | None = None,
    unread: Mapping[GpuUuid, str] = MappingProxyType({}),
) -> DeviceMap:
    """The map of a node with the GPUs `readings`: as it is given, else by minors. A GPU of the `last` map may be silent
    now; it is the node's all the same. `unread`: GPUs that NVML lists and that do not answer, with what was heard.

    Raises Refused BAD_DEVICE_MAP naming every GPU that is given twice, or that is not on this node; GPU_UNREAD where a
    first map by minors would leave out a GPU: it has a device file, and each index behind that would be wrong.
    """
    present = sorted(readings, key=lambda r: r.minor)
    if given.gpus is None:
        if unread and last is None:
            raise _unread(unread)
        by_minors = MappingProxyType({i: r.uuid for i, r in enumerate(present)})
        return DeviceMap(by_minors, Source.MINORS, given.slurm_node)
    known = {str(gpu): gpu for gpu in (*(last.gpus.values() if last else ()), *(r.uuid for r in present))}
    known |= {_bus_id(r.pci_bus_id): r.uuid for r in present}
    found = {i: known.get(gpu) or known.get(_bus_id(gpu)) for i, gpu in sorted(given.gpus.items())}
    strange = [f"{given.gpus[i]} (index {i}) is not on this node" for i, gpu in found.items() if gpu is None]
    counts = Counter(gpu for gpu in found.values() if gpu is not None)
    twice = [f"{gpu} has several indices" for gpu, count in counts.items() if count > 1]
    negative = [f"index {i} is negative" for i in found if i < 0]
    if wrong := [*negative, *twice, *strange]:
        raise Refused("BAD_DEVICE_MAP", f"device map: {'; '.join(wrong)}", "compare with `nvidia-smi -L`")
    gpus = MappingProxyType({i: gpu for i, gpu in found.items() if gpu is not None})
    return DeviceMap(gpus, given.source, given.slurm_node)


def _unread(unread: Mapping[GpuUuid, str]) -> Refused:
    named = ", ".join(f"{gpu} ({heard})" for gpu, heard in sorted(unread.items()))
    return Refused(
        "GPU_UNREAD",
        f"{named} does not answer, and never did, so nobody knows which index of Slurm it has",
        f"repair it, or give the map of the others in the ConfigMap {names.GPU_MAP}, by UUID",
    )


def _bus_id(text: str) -> str:
    """`0000:07:00.0`, however many zeros the domain is written with, in lower case."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}{colon}{rest}"


def next_map(last: DeviceMap | None, fresh: DeviceMap, *, busy: bool) -> DeviceMap:
    """The map to go by now. `busy`: a loan or a claim lives on the node, decided by `last`.

    A map by minors that has lost a GPU is not believed: a GPU that does not answer keeps its place in gres.conf, and
    those after it their index.
    """
    if last is None:
        return fresh
    if busy:
        return last
    shrunk = fresh.source is Source.MINORS is last.source and len(fresh.gpus) < len(last.gpus)
    return replace(last, slurm_node=fresh.slurm_node) if shrunk else fresh


def map_to_json(device_map: DeviceMap) -> dict[str, Any]:
    gpus = {str(i): gpu for i, gpu in sorted(device_map.gpus.items())}
    return {"v": VERSION, "source": device_map.source.value, "slurmNode": device_map.slurm_node, "gpus": gpus}


def map_from_json(body: Mapping[str, Any]) -> DeviceMap:
    """Raises KeyError, TypeError, ValueError or AttributeError for what is no map of a version we know."""
    if body["v"] != VERSION:
        raise ValueError(f"device map of version {body['v']!r}")
    gpus = {int(i): GpuUuid(str(gpu)) for i, gpu in body["gpus"].items()}
    if len(set(gpus.values())) != len(gpus):
        raise ValueError("a GPU has two indices")
    return DeviceMap(MappingProxyType(gpus), Source(body["source"]), str(body.get("slurmNode", "")))
