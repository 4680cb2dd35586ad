"""Making a node: files of the state, and the trees beside it."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from dynamig.errors import Conflict, Refused
from dynamig.testing.emulator import layout, tree
from dynamig.testing.emulator.model import ComputeProfile, GpuModel, Profile
from dynamig.testing.emulator.model_rules import side_by_side

_NAMESPACE = uuid.UUID("9d1c5a6e-3f0b-5b60-8d55-5b1f6a0c7e21")
_BRAND_NVIDIA = 14  # NVML_BRAND_NVIDIA: what data-centre parts have reported since R450

_CUDA_OF_BRANCH = (  # newest CUDA that a driver branch supports (CUDA release notes, table of driver versions)
    (580, 13000), (575, 12090), (570, 12080), (565, 12070), (560, 12060), (555, 12050), (550, 12040), (545, 12030),
    (535, 12020), (530, 12010), (525, 12000), (520, 11080), (515, 11070), (510, 11060), (495, 11050), (470, 11040),
    (465, 11030), (460, 11020), (455, 11010), (450, 11000),
)  # fmt: skip

_KERNEL_CAP_GIS, _KERNEL_CAP_CIS = 15, 8

_DIGITS = len(str(layout.MAX_GPUS)) + 1
"""Of a count: a longer one is too many by its first."""
_AT_MOST = f"at most {layout.MAX_GPUS}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What `init` was asked for. `virtualization`: nvmlGpuVirtualizationMode_t."""

    models: list[GpuModel]
    mig: bool
    seed: int
    driver_version: str
    renumber: bool
    ci_info_names_mig: bool
    virtualization: int
    trace: bool


def parse_gpus(text: str) -> list[str]:
    """`h100-80gb-sxm5:2,a30-24gb` is two H100 and one A30. Raises Refused BAD_GPUS."""
    keys: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(?P<key>[^:]+)(:0*(?P<count>\d+))?", part.strip())
        if not match:
            raise Refused("BAD_GPUS", f"{part!r} is not model:count", "such as h100-80gb-sxm5:2,a30-24gb:1")
        count = int((match["count"] or "1")[:_DIGITS])
        if count == 0:
            raise Refused("BAD_GPUS", f"{part!r} asks for no GPU", "leave it out, or count from 1")
        if len(keys) + count > layout.MAX_GPUS:
            raise Refused("BAD_GPUS", f"{text!r} asks for more GPUs than the driver's table has", _AT_MOST)
        keys += [match["key"]] * count
    return keys


def refuse_place(directory: Path) -> None:
    """Raises Conflict NODE_EXISTS, DIRECTORY_NOT_EMPTY, Refused BAD_PATH, PATH_TOO_LONG; OSError."""
    path = os.fsencode(directory.absolute())
    try:
        path.decode()
    except UnicodeDecodeError as error:
        raise Refused("BAD_PATH", f"the path {path!r} is not UTF-8", "choose another, clients print it") from error
    if len(path) > layout.LONGEST_PATH:
        what = f"the path of {directory.name} has more than {layout.LONGEST_PATH} bytes, which no client takes"
        raise Refused("PATH_TOO_LONG", what, "choose a shorter one")
    if any((directory / part).exists() for part in ("state", "proc", "dev", "sys")):
        what = f"{directory} is already an emulated node, or part of one"
        raise Conflict("NODE_EXISTS", what, "remove it, or choose another")
    if directory.is_dir() and any(directory.iterdir()):
        what = f"{directory} holds other files, which a node's would be mixed with"
        raise Conflict("DIRECTORY_NOT_EMPTY", what, "choose an empty directory, or a new one")


def make_node(directory: Path, plan: Plan) -> None:
    """Everything is in place, or nothing new; DIR/state/node comes last, so that no client meets half a node.

    Raises Refused BAD_VERSION, BAD_GPUS; OSError, also where somebody else is making a node there.
    """
    branch = _branch(plan.driver_version)
    if len(plan.models) > layout.MAX_GPUS:
        raise Refused("BAD_GPUS", f"{len(plan.models)} GPUs are more than the driver's table has", _AT_MOST)
    if plan.renumber and len(plan.models) == layout.MAX_GPUS:
        what = f"{len(plan.models)} GPUs have all minors of the driver's table, so none can get another"
        raise Refused("BAD_GPUS", what, f"at most {layout.MAX_GPUS - 1} where a MIG mode switch renumbers")
    was_there = directory.is_dir()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "state").mkdir()  # only one makes it: what is there from now on is ours
    try:
        _fill(directory, plan, branch)
    except BaseException:
        _clear(directory, was_there=was_there)
        raise


def _clear(directory: Path, *, was_there: bool) -> None:
    """The directory, empty before or not there, is so again."""
    for path in list(directory.iterdir()) if directory.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not was_there and directory.is_dir():
        directory.rmdir()


def _fill(directory: Path, plan: Plan, branch: int) -> None:
    majors = tree.Majors.free()
    gis, cis = _capability_table(plan.models)
    for name in ("state/busy", "proc", "sys"):
        (directory / name).mkdir()
    character = tree.can_make_devices(directory, majors.caps)
    gpus = [_gpu(directory, plan, number) for number in range(len(plan.models))]
    listed = [_tree_gpu(gpu, model) for gpu, model in zip(gpus, plan.models, strict=True)]
    head = _head(plan, branch, majors, gis, cis, character=character)
    told = {"driver_version": plan.driver_version, "boot_id": head.boot_id.decode()}
    tree.write_proc(directory / "proc", listed, majors, gis=gis, cis=cis, **told)
    tree.write_dev(directory / "dev", listed, majors, character=character)
    tree.write_sys(directory / "sys", listed)
    if plan.trace:
        (directory / "trace").touch()
    _write_state(directory / "state", plan, head, gpus)


def _write_state(state: Path, plan: Plan, head: layout.NodeHead, gpus: list[layout.Gpu]) -> None:
    models = _distinct(plan.models)
    count = layout.ModelsHead(magic=layout.MODELS_MAGIC, layout_version=layout.LAYOUT_VERSION, count=len(models))
    for name in ("lock", "faults", "events", *(f"busy/gpu{i}" for i in range(len(gpus)))):
        (state / name).touch()
    (state / "models").write_bytes(bytes(count) + b"".join(bytes(_model(m)) for m in models))
    (state / "node").write_bytes(bytes(head) + b"".join(bytes(gpu) for gpu in gpus))


def _distinct(models: list[GpuModel]) -> list[GpuModel]:
    return list(dict.fromkeys(models))


def _branch(driver_version: str) -> int:
    """Clients parse two or three numbers and some stop on anything else, so nothing else is let in."""
    match = re.fullmatch(r"([1-9][0-9]{2,3})\.[0-9]{1,6}(\.[0-9]{1,6})?", driver_version)
    if not match:
        raise Refused("BAD_VERSION", f"driver version {driver_version!r}", "two or three numbers, such as 580.95.05")
    return int(match[1])


def _cuda(branch: int) -> int:
    return next((cuda for first, cuda in _CUDA_OF_BRANCH if branch >= first), 11000)


def _capability_table(models: list[GpuModel]) -> tuple[int, int]:
    """GPU instances per GPU and compute instances per GPU instance: the kernel's table, larger if a model needs it."""
    gis, cis = _KERNEL_CAP_GIS, _KERNEL_CAP_CIS
    for model in models:
        for profile in model.profiles:
            tightly = model.memory_slices // profile.memory_slices
            gis = max(gis, 2 * (1 << (tightly - 1).bit_length()) - 1)
            cuts = ((start, c.compute_slices) for c in profile.compute_profiles for start in c.starts)
            cis = max(cis, side_by_side(cuts))
    return gis, cis


def _head(plan: Plan, branch: int, majors: tree.Majors, gis: int, cis: int, *, character: bool) -> layout.NodeHead:
    flags = layout.NODE_RENUMBERS if plan.renumber else 0
    flags |= layout.NODE_CHARACTER_NODES if character else 0
    flags |= layout.NODE_CI_INFO_NAMES_MIG if plan.ci_info_names_mig else 0
    return layout.NodeHead(
        magic=layout.NODE_MAGIC,
        layout_version=layout.LAYOUT_VERSION,
        gpu_count=len(plan.models),
        seed=plan.seed,
        next_serial=1,
        flags=flags,
        cuda_version=_cuda(branch),
        driver_branch=branch,
        caps_major=majors.caps,
        cap_gis=gis,
        cap_cis=cis,
        loaded_us=time.time_ns() // 1000,
        driver_version=plan.driver_version.encode(),
        boot_id=tree.new_boot_id().encode(),
    )


def _gpu(directory: Path, plan: Plan, number: int) -> layout.Gpu:
    identity = f"{directory.resolve()}/{plan.seed}/{number}/{plan.models[number].key}"
    bus = 0x07 + 0x08 * number  # one root complex each, as on servers with one GPU behind each switch port
    return layout.Gpu(
        uuid=f"GPU-{uuid.uuid5(_NAMESPACE, identity)}".encode(),
        serial_number=f"16{uuid.uuid5(_NAMESPACE, identity + '/serial').int % 10**11:011d}".encode(),
        bus_id=f"00000000:{bus:02X}:00.0".encode(),
        model=_distinct(plan.models).index(plan.models[number]),
        minor=number,
        pci_bus=bus,
        numa_node=-1,
        mig_current=int(plan.mig),
        mig_pending=int(plan.mig),
        virtualization=plan.virtualization,
    )


def _tree_gpu(gpu: layout.Gpu, model: GpuModel) -> tree.TreeGpu:
    return tree.TreeGpu(
        bdf=f"0000:{gpu.pci_bus:02x}:00.0",
        minor=gpu.minor,
        uuid=gpu.uuid.decode(),
        product=model.product,
        device=model.pci_device,
        numa_node=gpu.numa_node,
        memory_mib=model.memory_mib,
    )


def _model(model: GpuModel) -> layout.Model:
    made = layout.Model(
        key=model.key.encode(),
        product=model.product.encode(),
        architecture=model.architecture,
        brand=_BRAND_NVIDIA,
        cc_major=model.compute_capability[0],
        cc_minor=model.compute_capability[1],
        pci_device=model.pci_device,
        pci_subsystem=model.pci_device,
        compute_slices=model.compute_slices,
        memory_slices=model.memory_slices,
        multiprocessors=model.multiprocessors,
        reset_to_switch=int(model.reset_to_switch),
        profile_count=len(model.profiles),
        limit_milliwatt=model.limit_milliwatt,
        graphics_mhz=model.graphics_mhz,
        memory_mhz=model.memory_mhz,
        memory_mib=model.memory_mib,
    )
    for i, profile in enumerate(model.profiles):
        made.profiles[i] = _profile(profile)
    return made


def _profile(profile: Profile) -> layout.GiProfile:
    made = layout.GiProfile(
        name=profile.name.encode(),
        constant=profile.constant,
        id=profile.id,
        compute_slices=profile.compute_slices,
        memory_slices=profile.memory_slices,
        max_instances=profile.max_instances,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
        ci_profile_count=len(profile.compute_profiles),
        memory_mib=profile.memory_mib,
        starts=_mask(profile.starts),
    )
    for i, inside in enumerate(profile.compute_profiles):
        made.ci_profiles[i] = _compute_profile(inside)
    return made


def _compute_profile(profile: ComputeProfile) -> layout.CiProfile:
    return layout.CiProfile(
        constant=profile.constant,
        id=profile.id,
        slices=profile.compute_slices,
        multiprocessors=profile.multiprocessors,
        max_instances=profile.max_instances,
        starts=_mask(profile.starts),
    )


def _mask(starts: tuple[int, ...]) -> int:
    return sum(1 << start for start in starts)
