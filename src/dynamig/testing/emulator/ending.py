"""Instances of an emulated node end, with all their files: by whoever made them, by a reset, or with the driver.

A program holds what it runs on by a lock on a file in state/busy (emulator/src/busy.c).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from dynamig.errors import Unavailable
from dynamig.testing.emulator import layout
from dynamig.testing.emulator.node import Node, holders, is_locked, read_models


def driver_starts(directory: Path, node: Node) -> None:
    """Instances are gone everywhere; MIG mode is off except where something outside keeps it.

    That is the InfoROM of Ampere's GPUs, and the host of a VM, whose vGPU has the MIG mode of its type.
    """
    models = read_models(directory)
    node.head.loaded_us = time.time_ns() // 1000
    for number, gpu in enumerate(node.gpus):
        end_all(directory, node, number)
        kept = models[gpu.model].reset_to_switch or gpu.virtualization in (layout.PASSTHROUGH, layout.VGPU)
        gpu.mig_current = gpu.mig_pending = gpu.mig_pending if kept else 0
        gpu.persistence = 0


def end_all(directory: Path, node: Node, number: int) -> None:
    """Everything on the GPU is gone with its files. Locks on them are those of a world that is gone."""
    gpu = node.gpus[number]
    end(directory, node, number, [gi.id for gi in gpu.gis[: gpu.gi_count]])


def end(directory: Path, node: Node, number: int, ended: Collection[int]) -> None:
    """These GPU instances are gone, with what is in them and their files, once the change is committed."""
    gpu = node.gpus[number]
    for capability in _capabilities(node.head, gpu, ended):
        node.had.append(directory / f"dev/nvidia-caps/nvidia-cap{capability}")
    for gi_id in ended:
        node.told.append(_capabilities_of(directory, gpu) / f"gi{gi_id}")
        node.had += [directory / "state/busy" / name for name in busy_names(number, gpu, gi_id)]
    layout.keep(gpu, lambda gi_id: gi_id not in ended)


def _capabilities_of(directory: Path, gpu: layout.Gpu) -> Path:
    return directory / f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig"


def _capabilities(head: layout.NodeHead, gpu: layout.Gpu, of: Collection[int]) -> Iterator[int]:
    """Capability numbers of these GPU instances and their insides: the kernel's formula, see tree.capability_minors."""
    per_gi = 1 + head.cap_cis
    base = 3 + gpu.minor * head.cap_gis * per_gi
    yield from (base + gi_id * per_gi for gi_id in of)
    yield from (base + ci.gi_id * per_gi + 1 + ci.id for ci in gpu.cis[: gpu.ci_count] if ci.gi_id in of)


# ---- what is held


def refuse_if_held(directory: Path, number: int, gpu: layout.Gpu) -> None:
    """Raises Unavailable IN_USE if a program holds the GPU or anything on it."""
    inside = (name for gi in gpu.gis[: gpu.gi_count] for name in busy_names(number, gpu, gi.id))
    if holding := holders_of(directory, (busy_name(number), *inside)):
        raise Unavailable("IN_USE", f"GPU {number} is held by {holding}", "end it, or reboot the node")


def holders_of(directory: Path, names: Iterable[str]) -> str:
    """`process 123`: who holds any of these files of state/busy; empty if nobody does."""
    paths = [directory / "state/busy" / name for name in names]
    held = [path for path in paths if is_locked(path)]
    if not held:
        return ""
    pids = sorted({pid for path in held for pid in holders(path)})
    return "process " + ", ".join(map(str, pids)) if pids else "a program"


def busy_name(gpu: int, gi_id: int | None = None, ci_id: int | None = None) -> str:
    """The lock file of a GPU, a GPU instance or a compute instance."""
    inside = "" if gi_id is None else f"-gi{gi_id}"
    return f"gpu{gpu}{inside}" + ("" if ci_id is None else f"-ci{ci_id}")


def busy_names(number: int, gpu: layout.Gpu, gi_id: int) -> list[str]:
    """Of a GPU instance and all that is in it."""
    inside = [ci.id for ci in gpu.cis[: gpu.ci_count] if ci.gi_id == gi_id]
    return [busy_name(number, gi_id), *(busy_name(number, gi_id, ci) for ci in inside)]
