"""`dynamig emulator`: make an emulated GPU node, look at it, and disturb it while clients run.

DIR is the first argument everywhere; it may be left out where $DYNAMIG_EMULATOR_DIR names it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from typer.core import TyperCommand

from dynamig.cli.output import Json, plain, show
from dynamig.errors import Refused
from dynamig.testing.emulator import (
    Emulator,
    GpuModel,
    NvmlReturn,
    SeenFault,
    SeenGpu,
    SeenGpuInstance,
    SeenNode,
    TracedCall,
    load_geometry,
    parse_duration,
)

app = typer.Typer(help="Emulated GPU nodes: any NVML client runs on them.", no_args_is_help=True)

VARIABLE = "DYNAMIG_EMULATOR_DIR"
LONGEST_HOLD = 10**8  # three years; time.sleep takes not much more


class NodeCommand(TyperCommand):
    """A command whose first argument, DIR, may come from the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except typer.BadParameter as error:  # too few arguments, or one that stands in the place of another
            chosen = os.environ.get(VARIABLE)
            if not chosen and not self._names_node(ctx, args):
                error.message = self._without_directory(ctx, args, error.message)
            if not chosen or self._names_node(ctx, args) or self._too_many(ctx, [chosen, *args]):
                raise
        ctx.params.clear()
        return super().parse_args(ctx, [chosen, *args])

    def _without_directory(self, ctx: Any, args: list[str], message: str) -> str:
        """What is said of a wrong argument where no variable names the node."""
        first = self.make_parser(ctx).parse_args(list(args))[0].get("directory")
        taken = f"{first!r} was taken as DIR: give" if isinstance(first, str) else "Give"
        stop = "." if message and not message.endswith(".") else ""
        return f"{message}{stop} {taken} the node's directory first, or set ${VARIABLE}.".strip()

    def _names_node(self, ctx: Any, args: list[str]) -> bool:
        """The first argument is a node's directory: then it is another one that is missing or wrong."""
        first = self.make_parser(ctx).parse_args(list(args))[0].get("directory")
        return isinstance(first, str) and os.path.isfile(os.path.join(first, "state/node"))

    def _too_many(self, ctx: Any, args: list[str]) -> bool:
        """Then DIR was among those that were given."""
        return bool(self.make_parser(ctx).parse_args(list(args))[1])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """DIR is shown as what it is for people: it may be left out."""
        directory = next(p for p in self.params if p.name == "directory")
        directory.required = False
        try:
            super().format_help(ctx, formatter)
        finally:
            directory.required = True


def _whole_number(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


Dir = Annotated[Path, typer.Argument(metavar="DIR", help=f"The node's directory; default ${VARIABLE}.")]
Call = Annotated[
    str, typer.Argument(metavar="CALL", help="A symbol of nvml.h, or a pattern such as 'nvmlDeviceCreate*'.")
]
Gpu = Annotated[int, typer.Argument(metavar="GPU", parser=_whole_number, help="Number of the GPU on the node, from 0.")]
OfGpu = Annotated[int | None, typer.Option("--gpu", help="Only calls that name this GPU or an instance of it.")]
Nth = Annotated[int, typer.Option(help="The first matching call that is hit, of all processes together.")]


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


class Virtualization(StrEnum):
    NONE = "none"
    PASSTHROUGH = "passthrough"
    VGPU = "vgpu"


@app.command(cls=NodeCommand)
def init(
    directory: Dir,
    gpus: Annotated[str, typer.Option(help="model:count,... in PCI order; see `dynamig emulator models`.")],
    geometry: Annotated[Path | None, typer.Option(help="YAML file of GPU models instead of the shipped one.")] = None,
    mig: Annotated[Switch, typer.Option(help="MIG mode at the start.")] = Switch.ON,
    seed: Annotated[int, typer.Option(help="Shuffles instance ids.")] = 7,
    driver_version: Annotated[
        str,
        typer.Option(help="Up to 535, profiles are hidden with MIG off; before 470, MIG UUIDs are of the old form."),
    ] = "580.95.05",
    renumber: Annotated[bool, typer.Option(help="A MIG mode switch changes the GPU's minor.")] = False,
    ci_info_names_mig: Annotated[
        bool, typer.Option(help="A compute instance's info names its MIG device, not the GPU.")
    ] = False,
    virtualization: Annotated[
        Virtualization, typer.Option(help="What the GPUs say of themselves.")
    ] = Virtualization.NONE,
    trace: Annotated[bool, typer.Option(help="Keep a log of all calls.")] = True,
    json: Json = False,
) -> None:
    """Make DIR an emulated node."""
    node = Emulator(directory).init(
        gpus,
        geometry=geometry,
        mig=mig is Switch.ON,
        seed=seed,
        driver_version=driver_version,
        renumber=renumber,
        ci_info_names_mig=ci_info_names_mig,
        virtualization=virtualization.value,
        trace=trace,
    )
    show(node, _tree(node), as_json=json)


@app.command()
def models(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Its profiles, as a client sees them.")] = None,
    geometry: Annotated[Path | None, typer.Option(help="Another file of GPU models.")] = None,
    json: Json = False,
) -> None:
    """GPU models that can be emulated, and what the others lack; or all that is known of one."""
    catalog = load_geometry(geometry)
    if model is not None:
        show(catalog.model(model), _model(catalog.model(model)), as_json=json)
        return
    value = {
        "models": {key: [p.name for p in model.profiles] for key, model in catalog.models.items()},
        "incomplete": catalog.incomplete,
    }
    text = Text()
    for key, known in sorted(catalog.models.items()):
        text.append(f"{key:20} ", "bold").append(
            f"{known.product}: " + ", ".join(p.name for p in known.profiles) + "\n"
        )
    for key, missing in sorted(catalog.incomplete.items()):
        text.append(f"{key:20} incomplete: {len(missing)} fields missing, first {missing[0]}\n", "dim")
    show(value, text, as_json=json)


@app.command("show", cls=NodeCommand)
def show_node(directory: Dir, json: Json = False) -> None:
    """GPUs, what lives on them and who holds it, what was fed, and the faults that were ordered."""
    node = Emulator(directory).show()
    show(node, _tree(node), as_json=json)


@app.command(cls=NodeCommand)
def trace(
    directory: Dir,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Only calls from now on, until SIGINT or SIGTERM.")
    ] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Empty the log.")] = False,
    call: Annotated[str, typer.Option(help="Only calls that contain this text.")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that did not succeed.")] = False,
    json: Json = False,
) -> None:
    """Every NVML call on the node: arguments, result, process, time.

    Calls of a user who may not write to DIR/trace are missing, and those that $DYNAMIG_EMULATOR_TRACE sent elsewhere.
    """
    emulator = Emulator(directory)
    if clear:
        emulator.clear_trace()
        return

    def wanted(traced: TracedCall) -> bool:
        return call in traced.call and not (failed and traced.result == 0)

    if follow:
        _until_interrupted(lambda: _print_calls(filter(wanted, emulator.follow()), as_json=json))
        return
    calls = list(filter(wanted, emulator.trace()))
    if json:
        show(calls, Text(), as_json=True)
    else:
        _print_calls(calls, as_json=False)


@app.command(cls=NodeCommand)
def counters(directory: Dir, json: Json = False) -> None:
    """Calls per symbol since the log was cleared."""
    counted = dict(sorted(Emulator(directory).counters().items(), key=lambda item: (-item[1], item[0])))
    lines = "\n".join(f"{count:8}  {name}" for name, count in counted.items())
    show(counted, Text(lines or "no calls"), as_json=json)


@app.command(cls=NodeCommand)
def fail(
    directory: Dir,
    call: Call,
    code: Annotated[str, typer.Option(help="IN_USE, INSUFFICIENT_RESOURCES, 19, ...")],
    nth: Nth = 1,
    count: Annotated[int, typer.Option(help="How many calls are hit; 0: all that follow.")] = 1,
    gpu: OfGpu = None,
    after: Annotated[bool, typer.Option("--after", help="Do the work, then report the code.")] = False,
    json: Json = False,
) -> None:
    """CALL answers CODE."""
    parsed = NvmlReturn.parse(code)
    _ordered(Emulator(directory).fail(call, parsed, nth=nth, count=count, gpu=gpu, after=after), json)


@app.command(cls=NodeCommand)
def delay(
    directory: Dir,
    call: Call,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="800ms, 1.5s, 250us")],
    jitter: Annotated[str, typer.Option(help="Up to this much more.")] = "0ms",
    nth: Nth = 1,
    count: Annotated[int, typer.Option(help="How many calls are hit; 0: all that follow.")] = 0,
    gpu: OfGpu = None,
    json: Json = False,
) -> None:
    """CALL takes longer."""
    seconds, spread = parse_duration(duration), parse_duration(jitter)
    _ordered(Emulator(directory).delay(call, seconds, jitter=spread, nth=nth, count=count, gpu=gpu), json)


@app.command(cls=NodeCommand)
def latency(
    directory: Dir,
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="hopper: as published for H100-class GPUs.")],
    json: Json = False,
) -> None:
    """Calls take as long as on hardware, until `clear-faults`."""
    Emulator(directory).latencies(preset)
    _done(f"calls take as long as on {preset}", {"preset": preset}, json)


@app.command(cls=NodeCommand)
def feed(
    directory: Dir,
    file: Annotated[
        typer.FileText,
        typer.Argument(metavar="FILE", errors="replace", help="Lines such as `0 gpu0@4 used=9000 gpu=80`; - is stdin."),
    ],
    json: Json = False,
) -> None:
    """Memory, utilisation, temperature and power are what FILE says, from now on; an empty FILE: idle."""
    records = Emulator(directory).feed(file)
    text = f"{records} record{'s' * (records > 1)} of usage" if records else "nothing is used"
    _done(text, {"records": records}, json)


@app.command(cls=NodeCommand)
def hang(
    directory: Dir,
    call: Call,
    nth: Nth = 1,
    count: Annotated[int, typer.Option(help="How many calls are hit; 0: all that follow.")] = 1,
    gpu: OfGpu = None,
    json: Json = False,
) -> None:
    """CALL does not return until `clear-faults`."""
    _ordered(Emulator(directory).hang(call, nth=nth, count=count, gpu=gpu), json)


@app.command("clear-faults", cls=NodeCommand)
def clear_faults(directory: Dir, json: Json = False) -> None:
    """No call fails, waits or hangs any more."""
    Emulator(directory).clear_faults()
    _done("no faults", {"faults": 0}, json)


@app.command(cls=NodeCommand)
def hold(
    directory: Dir,
    gpu: Gpu,
    gi: Annotated[str, typer.Argument(metavar="GI", help="Id of a GPU instance, or `gpu` for the whole GPU.")],
    ci: Annotated[int | None, typer.Option(help="Only this compute instance of it; default all in it.")] = None,
    seconds: Annotated[float | None, typer.Option("--for", help="Seconds; default until SIGINT or SIGTERM.")] = None,
    json: Json = False,
) -> None:
    """Be a program on a GPU instance: destroying it is IN_USE meanwhile."""
    if seconds is not None and not 0 <= seconds <= LONGEST_HOLD:
        raise Refused("BAD_DURATION", f"--for {seconds}", f"0 to {LONGEST_HOLD} seconds; without it, until interrupted")
    if gi != "gpu" and not (gi.isdecimal() and len(gi) < 16):
        raise Refused("NO_SUCH_INSTANCE", f"{gi!r} is not a GPU instance id", "dynamig emulator show lists them")
    held = f"{gi} of GPU {gpu}" if ci is None else f"compute instance {ci} of {gi} of GPU {gpu}"
    with Emulator(directory).hold(gpu, None if gi == "gpu" else int(gi), ci):
        _done(f"holding {held}", {"gpu": gpu, "gi": gi, "ci": ci, "pid": os.getpid()}, json)
        _until_interrupted(lambda: time.sleep(seconds) if seconds is not None else signal.pause())


@app.command(cls=NodeCommand)
def foreign(
    directory: Dir,
    gpu: Gpu,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Name or ID: 3g.40gb, 9")],
    start: Annotated[int, typer.Argument(metavar="START", parser=_whole_number, help="First memory slice.")],
    compute_instance: Annotated[bool, typer.Option(help="With a compute instance that fills it.")] = True,
    json: Json = False,
) -> None:
    """An instance that somebody else made."""
    gi = Emulator(directory).foreign(gpu, profile, start, compute_instance=compute_instance)
    _done(f"GPU instance {gi}: {profile} at {start} of GPU {gpu}", {"gpu": gpu, "gi_id": gi}, json)


@app.command("remove-foreign", cls=NodeCommand)
def remove_foreign(
    directory: Dir,
    gpu: Gpu,
    gi: Annotated[int | None, typer.Option(help="Only this GPU instance; default all foreign ones of the GPU.")] = None,
    json: Json = False,
) -> None:
    """Whoever made foreign instances takes them away."""
    ended = Emulator(directory).remove_foreign(gpu, gi)
    listed = ", ".join(map(str, ended))
    text = f"gone from GPU {gpu}: GPU instance {listed}" if ended else f"GPU {gpu} has no foreign instance"
    _done(text, {"gpu": gpu, "removed": list(ended)}, json)


@app.command("mig", cls=NodeCommand)
def mig_mode(
    directory: Dir,
    gpu: Gpu,
    mode: Annotated[Switch, typer.Argument(metavar="on|off", help="MIG mode.")],
    json: Json = False,
) -> None:
    """As `nvidia-smi -mig`: on Ampere the mode is pending until `reset`."""
    emulator = Emulator(directory)
    emulator.set_mig(gpu, mode is Switch.ON)
    now = emulator.show().gpus[gpu]
    wants = "" if now.mig == now.mig_pending else f", {mode.value} after `dynamig emulator reset {directory} {gpu}`"
    text = f"MIG mode of GPU {gpu} is {'on' if now.mig else 'off'}{wants}"
    _done(text, {"gpu": gpu, "mig": now.mig, "mig_pending": now.mig_pending}, json)


@app.command(cls=NodeCommand)
def xid(
    directory: Dir,
    gpu: Gpu,
    code: Annotated[
        int,
        typer.Argument(metavar="XID", parser=_whole_number, help="79: fell off the bus; 48: double-bit ECC error; ..."),
    ],
    gi: Annotated[int | None, typer.Option(help="GPU instance that it belongs to.")] = None,
    ci: Annotated[int | None, typer.Option(help="Compute instance that it belongs to.")] = None,
    json: Json = False,
) -> None:
    """Clients that wait for events get this XID."""
    ids = {name: value for name, value in (("gi_id", gi), ("ci_id", ci)) if value is not None}
    Emulator(directory).xid(gpu, code, **ids)
    _done(f"XID {code} on GPU {gpu}", {"gpu": gpu, "xid": code, **ids}, json)


@app.command(cls=NodeCommand)
def lose(
    directory: Dir,
    gpu: Gpu,
    back: Annotated[bool, typer.Option("--back", help="It is there again.")] = False,
    json: Json = False,
) -> None:
    """The GPU fell off the bus: GPU_IS_LOST everywhere."""
    changed = Emulator(directory).lose(gpu, lost=not back)
    text = f"GPU {gpu} is {'back' if back else 'lost'}" if changed else f"GPU {gpu} {'was not' if back else 'is'} lost"
    _done(text, {"gpu": gpu, "lost": not back}, json)


@app.command(cls=NodeCommand)
def reset(directory: Dir, gpu: Gpu, json: Json = False) -> None:
    """As `nvidia-smi -r`: instances gone, pending MIG mode in force."""
    Emulator(directory).reset(gpu)
    _done(f"GPU {gpu} was reset", {"gpu": gpu}, json)


@app.command("reload", cls=NodeCommand)
def reload_driver(directory: Dir, json: Json = False) -> None:
    """As `rmmod` and `modprobe`: instances gone, MIG mode off from Hopper on; the boot is the same."""
    node = Emulator(directory).reload_driver()
    show(node, _tree(node), as_json=json)


@app.command(cls=NodeCommand)
def reboot(directory: Dir, json: Json = False) -> None:
    """A new boot: instances gone, MIG mode off from Hopper on, a new boot id."""
    node = Emulator(directory).reboot()
    show(node, _tree(node), as_json=json)


# ---- drawing


def _ordered(fault: SeenFault, as_json: bool) -> None:
    _done(str(fault), asdict(fault), as_json)


def _done(text: str, value: dict[str, Any], as_json: bool) -> None:
    show(value, Text(text), as_json=as_json)


def _until_interrupted(work: Callable[[], object]) -> None:
    try:
        work()
    except KeyboardInterrupt:
        return


def _print_calls(calls: Iterable[TracedCall], *, as_json: bool) -> None:
    """One call, one line, also through a pipe."""
    console = Console()
    for traced in calls:
        if as_json:
            typer.echo(dumps(plain(traced)))
        else:
            console.print(_line(traced), soft_wrap=True)


def _line(traced: TracedCall) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(traced.time)) + f".{int(traced.time * 1000) % 1000:03}"
    text = Text(f"{clock} {traced.pid:>7} ", "dim")
    text.append(traced.call, "bold").append("(" + ", ".join(f"{k}={v}" for k, v in traced.args.items()) + ")")
    known = traced.result in NvmlReturn._value2member_map_
    name = NvmlReturn(traced.result).name if known else str(traced.result)
    return text.append(f" {name}", "green" if traced.result == 0 else "red").append(f" {traced.us} us", "dim")


def _model(model: GpuModel) -> Group:
    """Ids are those that NVML's calls take, and `nvidia-smi mig -cgi` and `-cci`."""
    facts = f"{model.product}, {model.memory_mib} MiB, {model.multiprocessors} multiprocessors, "
    slices = f"{model.compute_slices} compute slices and {model.memory_slices} memory slices"
    switch = "MIG capable; a switch of MIG mode is " + ("pending until a reset" if model.reset_to_switch else "at once")
    table = Table(box=None, header_style="bold")
    for title in ("profile", "id", "MiB", "SMs", "count", "size", "starts", "CE/dec/enc/jpeg/ofa", "compute profiles"):
        table.add_column(title, overflow="fold")
    for p in model.profiles:
        engines = (p.copy_engines, p.decoders, p.encoders, p.jpeg_engines, p.ofa_engines)
        cuts = ", ".join(
            f"{c.id}: {c.compute_slices}c {c.multiprocessors} SMs x{c.max_instances}" for c in p.compute_profiles
        )
        numbers = map(str, (p.id, p.memory_mib, p.multiprocessors, p.max_instances, p.memory_slices))
        table.add_row(p.name, *numbers, ",".join(map(str, p.starts)), "/".join(map(str, engines)), cuts)
    return Group(Text(facts + slices), Text(switch), table)


def _tree(node: SeenNode) -> Tree:
    root = Tree(Text.assemble((node.directory, "bold"), f"  driver {node.driver_version}  boot {node.boot_id}"))
    for gpu in node.gpus:
        branch = root.add(_gpu_line(gpu))
        for gi in gpu.gpu_instances:
            leaf = branch.add(_gi_line(gi))
            for ci in gi.compute_instances:
                slices = f"{ci.size} compute slice{'s' * (ci.size > 1)} from {ci.start}"
                leaf.add(Text(f"CI {ci.ci_id}  {slices}  {ci.mig_uuid}") + _held(ci.held_by))
    if node.usage_records:
        root.add(Text(f"usage was fed: {node.usage_records} record{'s' * (node.usage_records > 1)}"))
    for fault in node.faults:
        root.add(Text(f"{fault}; {fault.seen} seen" + ", spent" * fault.spent, "dim" if fault.spent else "yellow"))
    return root


def _held(pids: tuple[int, ...]) -> Text:
    return Text("  held by process " + ", ".join(map(str, pids)) if pids else "", "yellow")


def _gpu_line(gpu: SeenGpu) -> Text:
    mode = {True: "on", False: "off"}
    text = Text.assemble((f"GPU {gpu.index} ", "bold"), f"{gpu.product}  {gpu.uuid}  /dev/nvidia{gpu.minor}  ")
    text.append(f"MIG {mode[gpu.mig]}", "green" if gpu.mig else "dim")
    if gpu.mig_pending != gpu.mig:
        text.append(f" (pending {mode[gpu.mig_pending]}: reset it)", "yellow")
    return text.append("  LOST" * gpu.lost, "red") + _held(gpu.held_by)


def _gi_line(gi: SeenGpuInstance) -> Text:
    text = Text.assemble((f"GI {gi.gi_id} ", "bold"), f"{gi.profile}@{gi.start}:{gi.size}")
    return text.append("  foreign" * gi.foreign, "magenta") + _held(gi.held_by)
