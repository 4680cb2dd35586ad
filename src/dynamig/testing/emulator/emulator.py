"""An emulated node, made and driven from Python while NVML clients run on it."""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator import calllog, ending, faults, latency, layout, making, tree, usage
from dynamig.testing.emulator.calllog import TracedCall
from dynamig.testing.emulator.faults import NvmlReturn, SeenFault
from dynamig.testing.emulator.geometry import load_geometry
from dynamig.testing.emulator.library import foreign_instance, known_call, refusal, switch_mig
from dynamig.testing.emulator.node import (
    append_event,
    boot_id_follows,
    boot_id_is_left_behind,
    changing,
    files_of,
    locked,
    read_models,
    read_node,
    reason,
    remedy,
)
from dynamig.testing.emulator.seen import SeenNode, seen_node

XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
_LARGEST_XID = 999  # NVIDIA's catalogue of XIDs has three digits at most


class Emulator:
    """The node in `directory`. Cheap to make; holds nothing open."""

    def __init__(self, directory: Path | str, *, library: Path | None = None) -> None:
        self.directory = Path(directory)
        self._library = library

    # ---- making

    def init(
        self,
        gpus: str | Iterable[str],
        *,
        geometry: Path | None = None,
        mig: bool = True,
        seed: int = 7,
        driver_version: str = "580.95.05",
        renumber: bool = False,
        ci_info_names_mig: bool = False,
        virtualization: Literal["none", "passthrough", "vgpu"] = "none",
        trace: bool = True,
    ) -> SeenNode:
        """The directory is an emulated node: `gpus` is `model:count,...` or a list of model keys, in PCI order.

        `renumber`: a MIG mode switch gives the GPU another minor. `ci_info_names_mig`: the device in the info of a
        compute instance is the MIG device; else the GPU, as nvml.h has it (clients differ in what they expect).
        GPU UUIDs follow from the seed and the absolute path, so two nodes never share one.
        Raises Refused UNKNOWN_MODEL, INCOMPLETE_MODEL, BAD_GPUS, BAD_VERSION; Conflict NODE_EXISTS,
        DIRECTORY_NOT_EMPTY;
        BAD_PATH, PATH_TOO_LONG, BAD_SEED; Unavailable NODE_UNWRITABLE.
        """
        keys = making.parse_gpus(gpus) if isinstance(gpus, str) else list(gpus)
        catalog = load_geometry(geometry)
        plan = making.Plan(
            models=[catalog.model(key) for key in keys],
            mig=mig,
            seed=seed,
            driver_version=driver_version,
            renumber=renumber,
            ci_info_names_mig=ci_info_names_mig,
            virtualization=("none", "passthrough", "vgpu").index(virtualization),
            trace=trace,
        )
        if not 0 <= seed < 2**64:
            raise Refused("BAD_SEED", f"seed {seed}", "0 to 2**64 - 1")
        try:
            making.refuse_place(self.directory)
            making.make_node(self.directory, plan)
        except OSError as error:
            what = f"no node can be made in {self.directory}: {reason(error)}"
            raise Unavailable("NODE_UNWRITABLE", what, remedy(error)) from error
        return self.show()

    # ---- looking

    def show(self) -> SeenNode:
        """Everything that lives on the node now, in one consistent picture.

        Where a reboot was killed halfway, the boot id in /proc is put right, if this process may write there.
        """
        with files_of(self.directory):
            if boot_id_is_left_behind(self.directory, read_node(self.directory).head):
                with locked(self.directory / "state/lock"):
                    boot_id_follows(self.directory, read_node(self.directory).head)
        return seen_node(self.directory)

    def trace(self) -> list[TracedCall]:
        """All calls so far, oldest first; empty if the node keeps no trace."""
        read_node(self.directory)
        return calllog.read(self.directory)

    def follow(self, *, poll: float = 0.05) -> Iterator[TracedCall]:
        """Calls as they happen, from now on, without end, whoever clears the trace meanwhile."""
        read_node(self.directory)
        return calllog.follow(self.directory, poll)

    def clear_trace(self) -> None:
        """Raises Refused NO_TRACE, as `follow`, if the node keeps none."""
        read_node(self.directory)
        calllog.clear(self.directory)

    def counters(self) -> Mapping[str, int]:
        """Calls per symbol since the trace was cleared."""
        return Counter(call.call for call in self.trace())

    # ---- faults

    def fail(
        self,
        call: str,
        code: NvmlReturn | int,
        *,
        nth: int = 1,
        count: int = 1,
        gpu: int | None = None,
        after: bool = False,
    ) -> SeenFault:
        """`call` answers `code` from its nth call on, `count` times; `count` 0: for ever.

        `call` is a symbol or a pattern such as `nvmlDeviceCreate*`; a symbol without its version, `nvmlDeviceGetCount`,
        is all its versions. Calls of all processes are counted together, from now. `after`: the work is done all the
        same, only the answer is wrong.
        Raises Refused UNKNOWN_CALL, here and for other faults, if the library has no such symbol.
        """
        flags = layout.FAULT_AFTER if after else 0
        return self._order(call, layout.FAULT_FAIL, code=int(code), nth=nth, count=count, gpu=gpu, flags=flags)

    def delay(
        self, call: str, seconds: float, *, jitter: float = 0.0, nth: int = 1, count: int = 0, gpu: int | None = None
    ) -> SeenFault:
        """`call` takes that much longer, plus an even share of `jitter`; no lock is held meanwhile."""
        us, spread = round(seconds * 1e6), round(jitter * 1e6)
        return self._order(call, layout.FAULT_DELAY, nth=nth, count=count, gpu=gpu, delay_us=us, jitter_us=spread)

    def latencies(self, preset: str) -> None:
        """Calls take as long as on hardware, as far as that was published; see `latency.py`.

        `clear_faults` ends it, and another preset takes its place.

        Raises Refused UNKNOWN_PRESET.
        """
        calls = latency.preset(preset)
        faults.clear_faults(self.directory, layout.FAULT_TAIL)
        for one in calls:
            us, tail = round(one.least * 1e6), round(one.tail * 1e6)
            fields = {"delay_us": us, "jitter_us": tail, "flags": layout.FAULT_TAIL, "count": 0}
            self._order(one.call, layout.FAULT_DELAY, nth=1, **fields)

    def hang(self, call: str, *, nth: int = 1, count: int = 1, gpu: int | None = None) -> SeenFault:
        """`call` does not come back until the faults are cleared."""
        return self._order(call, layout.FAULT_HANG, nth=nth, count=count, gpu=gpu)

    def clear_faults(self) -> None:
        faults.clear_faults(self.directory)

    def _order(self, call: str, kind: int, *, gpu: int | None = None, nth: int, **fields: int) -> SeenFault:
        if not re.fullmatch(r"[\w*?\[\]]{1,95}", call):
            raise Refused("BAD_FAULT", f"{call!r} is not a call", "name a symbol of nvml.h or a pattern")
        if nth < 1:
            raise Refused("BAD_FAULT", f"nth {nth}", "the first call is 1")
        for name, number in {"nth": nth, **fields}.items():
            if not 0 <= number <= layout.LARGEST:
                longest = f"0 to {layout.LARGEST} microseconds, which are 71 minutes"
                allowed = longest if name.endswith("_us") else f"0 to {layout.LARGEST}"
                raise Refused("BAD_FAULT", f"{name} {number}", allowed)
        known_call(call, self._library)
        if gpu is not None:
            self._gpu_number(gpu)
        fault = layout.Fault(call=call.encode(), kind=kind, gpu=-1 if gpu is None else gpu, nth=nth, **fields)
        faults.order_fault(self.directory, fault)
        return faults.seen_fault(fault)

    # ---- events of the world

    def foreign(self, gpu: int, profile: str | int, start: int, *, compute_instance: bool = True) -> int:
        """An instance made by somebody else lives at `start`; returns its id.

        No fault strikes it, no trace tells of it. Raises Refused UNKNOWN_PROFILE or NVML_<code> as NVML would answer.
        """
        living = self._reachable(gpu)
        if not living.mig_current:
            todo = f"reset {self.directory} {gpu}" if living.mig_pending else f"mig {self.directory} {gpu} on"
            off = "off until a reset" if living.mig_pending else "off"
            raise Refused(
                "MIG_OFF", f"MIG mode of GPU {gpu} is {off}, so it has no instances", f"dynamig emulator {todo}"
            )
        model = read_models(self.directory)[living.model]
        profile_id = _profile_id(model, str(profile))
        if start not in (starts := _starts(model, profile_id)):
            listed = "at one of " + ", ".join(map(str, starts))
            raise Refused("NVML_INVALID_ARGUMENT", f"GPU {gpu}: {profile} cannot start at slice {start}", listed)
        code, made = foreign_instance(self.directory, self._library, gpu, profile_id, start, with_ci=compute_instance)
        [size] = [p.memory_slices for p in model.profiles[: model.profile_count] if p.id == profile_id]
        self._check(code, gpu, f"{profile} at {start}", range(start, start + size))
        return made

    def remove_foreign(self, gpu: int, gi_id: int | None = None) -> tuple[int, ...]:
        """Whoever made it takes this foreign instance away, or all on the GPU; returns their ids.

        Raises Refused NOT_FOREIGN for an instance that `foreign` has not made or that is not there, Unavailable IN_USE.
        """
        self._gpu_number(gpu)
        with changing(self.directory) as node:
            living = node.gpus[gpu]
            foreign = [gi.id for gi in living.gis[: living.gi_count] if gi.flags & layout.GI_FOREIGN]
            if gi_id is not None and gi_id not in foreign:
                raise self._not_foreign(gpu, gi_id, living, foreign)
            ended = foreign if gi_id is None else [gi_id]
            for number in ended:
                if holding := ending.holders_of(self.directory, ending.busy_names(gpu, living, number)):
                    raise Unavailable("IN_USE", f"GPU instance {number} of GPU {gpu} is held by {holding}", "end it")
            ending.end(self.directory, node, gpu, ended)
        return tuple(ended)

    def _not_foreign(self, gpu: int, gi_id: int, living: layout.Gpu, foreign: Iterable[int]) -> Refused:
        if any(gi.id == gi_id for gi in living.gis[: living.gi_count]):
            what = f"GPU instance {gi_id} of GPU {gpu} is not foreign: a client made it"
            all_of_it = f"dynamig emulator reset {self.directory} {gpu}"
            return Refused("NOT_FOREIGN", what, f"let a client destroy it; `{all_of_it}` ends all on the GPU")
        listed = ", ".join(map(str, foreign)) or "none"
        return Refused("NOT_FOREIGN", f"GPU {gpu} has no foreign GPU instance {gi_id}", f"foreign: {listed}")

    def set_mig(self, gpu: int, on: bool) -> None:
        """As `nvidia-smi -mig`: MIG mode is switched, or pending until `reset` where the model needs that (Ampere).

        Raises Refused NVML_IN_USE while instances live.
        """
        code = switch_mig(self.directory, self._library, self._reachable(gpu).uuid.decode(), on=on)
        self._check(code, gpu, f"MIG mode {'on' if on else 'off'}")

    @contextmanager
    def hold(self, gpu: int, gi_id: int | None = None, ci_id: int | None = None) -> Iterator[None]:
        """A program runs on the compute instance, the GPU instance with all in it, or the whole GPU.

        Destroying it is IN_USE while the block lasts. Raises Refused NO_SUCH_INSTANCE.
        """
        self._living(gpu, gi_id, ci_id)
        name = ending.busy_name(gpu, gi_id, ci_id)
        with files_of(self.directory):
            try:
                descriptor = os.open(self.directory / "state/busy" / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._living(gpu, gi_id, ci_id)  # else it has just been destroyed
                raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink == 0:
                what = f"what was to be held, {name}, has just been destroyed"
                raise Refused("NO_SUCH_INSTANCE", what, f"dynamig emulator show {self.directory}")
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of a copy that a child has
            os.close(descriptor)

    def xid(self, gpu: int, code: int, *, gi_id: int | None = None, ci_id: int | None = None) -> None:
        """Clients that wait for events get this XID, of the GPU or of an instance that lives on it.

        Raises Refused BAD_XID, NO_SUCH_INSTANCE.
        """
        if not 1 <= code <= _LARGEST_XID:
            told = f"1 to {_LARGEST_XID}, after the number of the GPU; 79: fell off the bus"
            raise Refused("BAD_XID", f"{code} is no XID", told)
        self._living(gpu, gi_id, ci_id)
        gi, ci = (layout.NO_ID if number is None else number for number in (gi_id, ci_id))
        with locked(self.directory / "state/lock"):
            append_event(self.directory, layout.Event(type=XID_EVENT, data=code, gpu=gpu, gi_id=gi, ci_id=ci))

    def feed(self, lines: Iterable[str]) -> int:
        """Devices use what the text says, from now on; returns how many records.

        Of what was fed before only the energy still counts. The form is in `usage.py`. Memory, utilisation, temperature
        and power of every client's answers follow it.
        Raises Refused BAD_USAGE with the line.
        """
        models = read_models(self.directory)
        records = usage.parse_usage(lines, [models[gpu.model] for gpu in read_node(self.directory).gpus])
        usage.feed(self.directory, records)
        return len(records)

    def lose(self, gpu: int, *, lost: bool = True) -> bool:
        """The GPU fell off the bus: every call that names it answers GPU_IS_LOST. `lost=False` brings it back.

        Whether that is news.
        """
        self._gpu_number(gpu)
        with changing(self.directory) as node:
            changed = bool(node.gpus[gpu].lost) is not lost
            node.gpus[gpu].lost = int(lost)
        return changed

    def reset(self, gpu: int) -> None:
        """As `nvidia-smi -r`: instances are gone, the pending MIG mode is in force.

        Raises Unavailable IN_USE, or GPU_IS_LOST: what fell off the bus cannot be reached to reset it.
        """
        self._gpu_number(gpu)
        with changing(self.directory) as node:
            if node.gpus[gpu].lost:
                back = f"dynamig emulator lose {self.directory} {gpu} --back, or reboot"
                raise Unavailable("GPU_IS_LOST", f"GPU {gpu} fell off the bus: a reset does not reach it", back)
            ending.refuse_if_held(self.directory, gpu, node.gpus[gpu])
            ending.end_all(self.directory, node, gpu)
            node.gpus[gpu].mig_current = node.gpus[gpu].mig_pending

    def reboot(self) -> SeenNode:
        """A new boot: instances gone everywhere, MIG mode as after `reload_driver`, lost GPUs back."""
        with changing(self.directory) as node:
            ending.driver_starts(self.directory, node)
            for gpu in node.gpus:
                gpu.lost = 0
            node.head.boot_id = tree.new_boot_id().encode()
        return self.show()

    def reload_driver(self) -> SeenNode:
        """As `rmmod` and `modprobe`: instances are gone, MIG mode is off except where something outside keeps it.

        That is Ampere, which has it in its InfoROM, and a passthrough VM's GPU; both take the pending mode then.
        Raises Unavailable IN_USE while a program runs.
        """
        with changing(self.directory) as node:
            for number, gpu in enumerate(node.gpus):
                ending.refuse_if_held(self.directory, number, gpu)
            ending.driver_starts(self.directory, node)
        return self.show()

    def _check(self, code: NvmlReturn, gpu: int, what: str, slices: range = range(layout.MAX_SLICES)) -> None:
        """Raises Refused NVML_<code> for what the library refused, with what lives on these memory slices."""
        if code is not NvmlReturn.SUCCESS:
            living = self.show().gpus[gpu].gpu_instances
            there = [gi for gi in living if gi.start < slices.stop and slices.start < gi.start + gi.size]
            listed = ", ".join(f"GPU instance {gi.gi_id} ({gi.profile}@{gi.start})" for gi in there)
            raise refusal(code, f"GPU {gpu}: {what}", self.directory, listed)

    def _living(self, gpu: int, gi_id: int | None, ci_id: int | None) -> None:
        self._gpu_number(gpu)
        living = read_node(self.directory).gpus[gpu]
        gis = [gi.id for gi in living.gis[: living.gi_count]]
        cis = [ci.id for ci in living.cis[: living.ci_count] if ci.gi_id == gi_id]
        for what, number, known in (("GPU", gi_id, gis), ("compute", ci_id, cis)):
            if number not in (None, *known):
                listed = ", ".join(map(str, known)) or "none"
                raise Refused("NO_SUCH_INSTANCE", f"GPU {gpu} has no {what} instance {number}", f"it has {listed}")

    def _reachable(self, gpu: int) -> layout.Gpu:
        """Raises Refused GPU_HIDDEN if its device node is gone: the library then shows it to nobody."""
        self._gpu_number(gpu)
        living = read_node(self.directory).gpus[gpu]
        if not (node := self.directory / f"dev/nvidia{living.minor}").exists():
            what = f"GPU {gpu} of {self.directory} is hidden: {node} is not there"
            raise Refused("GPU_HIDDEN", what, f"put it back (mknod -m 666 {node} c 195 {living.minor}; or touch it)")
        return living

    def _gpu_number(self, gpu: int) -> None:
        count = read_node(self.directory).head.gpu_count
        if not 0 <= gpu < count:
            raise Refused("NO_SUCH_GPU", f"{self.directory} has no GPU {gpu}", f"0 to {count - 1}")


def _profile_id(model: layout.Model, profile: str) -> int:
    known = model.profiles[: model.profile_count]
    for candidate in known:
        if profile in (candidate.name.decode(), str(candidate.id)):
            return int(candidate.id)
    names = ", ".join(p.name.decode() for p in known)
    raise Refused("UNKNOWN_PROFILE", f"{model.key.decode()} has no profile {profile!r}", f"it has {names}")


def _starts(model: layout.Model, profile_id: int) -> list[int]:
    [mask] = [p.starts for p in model.profiles[: model.profile_count] if p.id == profile_id]
    return [slice_ for slice_ in range(layout.MAX_SLICES) if mask >> slice_ & 1]
