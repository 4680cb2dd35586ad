"""A lab, from Python: what the command line, the tests and the demo use."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from dynamig.errors import Refused
from lab import blueprint, cache, components, folder, machines, ports, preflight, processes, spec, teardown
from lab.daemons import Artifacts
from lab.execute import Cancel, execute
from lab.plan import missing, with_needs
from lab.progress import Reporter
from lab.slurm import answers, clients
from lab.slurm.daemons import HOOKS
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

DEFAULT_NODES = ("n1", "n2")
DEFAULT_GPUS = "h100-80gb-sxm5:2"


@dataclass(frozen=True, slots=True)
class Status:
    """One daemon now. `reason` says why it is not ready; None if it is. `since` in Unix seconds."""

    name: str
    pid: int | None
    since: float | None
    ports: tuple[int, ...]
    log: Path
    reason: str | None


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    dir: Path
    lab: Lab

    @property
    def emulator_dir(self) -> Path:
        return components.DriverFiles(self.dir).emulator

    def nvml_list(self) -> dict[str, Any]:
        """What an NVML client sees on this node, as `build/nvml-list` prints it."""
        return components.nvml_list(components.DriverFiles(self.dir))

    def run(self, *argv: str, timeout_s: float = 120) -> str:
        """Standard output of a command inside the node's namespaces (Debian root, own /proc and /dev)."""
        return machines.run_inside(self.lab.layout, self.name, argv, timeout_s=timeout_s)


def default_dir(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(environ.get("DYNAMIG_LAB_DIR") or components.REPOSITORY / ".lab")


class Lab:
    """An existing lab's folder with its daemons, running or not. Get one with `open` or `create`."""

    def __init__(self, layout: Layout, plan: LabSpec, have: Artifacts, reporter: Reporter) -> None:
        self.layout, self.spec = layout, plan
        self._have, self._reporter = have, reporter
        self._blueprint = blueprint.Blueprint(layout, plan, have, with_driver=plan.with_driver)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], reporter: Reporter | None = None) -> Lab:
        """The lab in this folder. Raises Refused if there is none."""
        layout = _layout(directory)
        found = folder.read_spec(layout)
        if found is None:
            raise Refused("NO_LAB", f"no lab in {layout.root}", "python -m lab up")
        return cls(layout, found, blueprint.artifacts(), reporter or _silent())

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        *,
        nodes: Sequence[NodeSpec] | None = None,
        base_port: int | None = None,
        with_driver: bool = True,
        with_slurm: bool = True,
        slurm_hooks: Path | None = None,
        notebook: bool = False,
        reporter: Reporter | None = None,
    ) -> Lab:
        """The lab in this folder, made if there is none; its daemons are as they were.

        `slurm_hooks`, `notebook`: see LabSpec.

        Raises: Refused with all that is wrong with the request or missing on the machine, or if a lab with other
        nodes or ports is there already.
        """
        layout = _layout(directory)
        have = blueprint.artifacts()
        preflight.check(blueprint.needs(have), cache.cache_root(os.environ), layout.root)
        if with_driver and (lacking := components.problems()):
            listed = "".join(f"\n  - {problem}" for problem in lacking)
            raise Refused("NOT_BUILT", f"the driver cannot run yet:{listed}", "or use --without-driver")
        with alone(layout):
            found = folder.read_spec(layout)
            plan = _agree(found, nodes, base_port, layout) if found else _design(layout, nodes, base_port)
            hooks = _hooks(slurm_hooks)
            plan = replace(plan, with_driver=with_driver, with_slurm=with_slurm, slurm_hooks=hooks, notebook=notebook)
            folder.claim(layout, plan)
        return cls(layout, plan, have, reporter or _silent())

    def up(self) -> None:
        """Every daemon runs and is ready; what was so already was left alone."""
        cancel = Cancel()
        with self._alone(), self._reporter.live():
            with self._reporter.task("folder, keys, configuration"):
                folder.fill(self.layout, self.spec)
            self._take(self._blueprint.parts, cancel)

    def down(self, *, keep_logs: bool = False) -> None:
        """Nothing of the lab is left but the caches (and its logs, if they are to be kept)."""
        take_down(self.layout.root, self._reporter, keep_logs=keep_logs)

    def status(self) -> list[Status]:
        """All daemons, each asked now."""
        daemons = list(self._blueprint.daemons.values())
        with ThreadPoolExecutor(max_workers=len(daemons)) as pool:
            seen = pool.map(partial(machines.look, self.layout), daemons)
            return [
                Status(
                    daemon.name,
                    look.record.identity.pid if look.record else None,
                    look.record.since if look.record else None,
                    daemon.ports,
                    self.layout.log(daemon.name),
                    look.reason,
                )
                for daemon, look in zip(daemons, seen, strict=True)
            ]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.spec.nodes)

    @property
    def daemons(self) -> tuple[str, ...]:
        """Names that `start`, `stop`, `kill`, `pid` and `log` take."""
        return tuple(self._blueprint.daemons)

    def node(self, name: str) -> Node:
        if name not in self.nodes:
            raise Refused("UNKNOWN_NODE", f"no node {name!r}", f"nodes: {', '.join(self.nodes)}")
        return Node(name, self.layout.node(name), self)

    @property
    def admin_kubeconfig(self) -> Path:
        return self.layout.admin_kubeconfig

    @property
    def kubectl_path(self) -> Path:
        return self._have.kube / "kubectl"

    def kubectl(self, *args: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Standard output of kubectl as administrator. Raises Unavailable with its message if it fails."""
        return self._blueprint.kubectl(*args, stdin=stdin, timeout_s=timeout_s)

    def kubectl_json(self, *args: str, stdin: str | None = None) -> Any:
        return json.loads(self.kubectl(*args, "--output=json", stdin=stdin))

    def slurm(self, *argv: str, user: str = "root", stdin: str | None = None) -> str:
        """Standard output of one of Slurm's commands, run by this user in the control plane's machine."""
        return clients.run_as(self.layout, user, argv, stdin)

    def slurm_command(self, argv: Sequence[str], user: str = "root", machine: str = CONTROL) -> list[str]:
        """The same as a command line of the host, for whoever wants to run it himself."""
        return [*machines.enter_command(self.layout, machine), *clients.as_user(user, argv)]

    def slurm_json(self, *argv: str, user: str = "root") -> Any:
        """The same with `--json`, for commands that have it: squeue, sinfo, scontrol show."""
        return json.loads(self.slurm(argv[0], "--json", *argv[1:], user=user))

    def submit(self, script: str, *args: str, user: str = "alice") -> int:
        """The id of a batch job. `args` are sbatch's; output lies in the home of `user` on the job's node."""
        return clients.job_id(self.slurm("sbatch", "--parsable", *args, user=user, stdin=script))

    def slurm_token(self, user: str, lifespan_s: int = 3600) -> str:
        """A token with which slurmrestd takes us for this user."""
        return answers.token(self.slurm("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}"))

    @property
    def slurmrestd_url(self) -> str:
        return f"http://127.0.0.1:{self.spec.ports.slurmrestd}"

    def start(self, name: str) -> None:
        """The daemon, and what it needs, run and are ready."""
        self._known(name)
        self._take([step.name for step in with_needs(self._blueprint.steps, [name])], Cancel())

    def stop(self, name: str) -> None:
        """The daemon has ended: TERM, then KILL when its time is up. Nothing happens if it does not run."""
        daemon = self._blueprint.daemons[self._known(name)]
        if record := machines.running(self.layout, name):
            machines.stop(daemon, record)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """The daemon was sent a signal; after KILL it has ended. Raises Refused if it does not run."""
        record = machines.running(self.layout, self._known(name))
        if record is None or not processes.send(record.identity, number):
            raise Refused("NOT_RUNNING", f"{name} does not run", "")
        if number == signal.SIGKILL:
            processes.wait_gone(record.identity, processes.AFTER_KILL_S)

    def pid(self, name: str) -> int | None:
        """As the host sees it; None if the daemon does not run."""
        record = machines.running(self.layout, self._known(name))
        return record.identity.pid if record else None

    def log(self, name: str) -> Path:
        """The file with everything the daemon wrote, over all its starts."""
        return self.layout.log(self._known(name))

    def _known(self, name: str) -> str:
        if name not in self._blueprint.daemons:
            raise Refused("UNKNOWN_DAEMON", f"no daemon {name!r}", f"daemons: {', '.join(self.daemons)}")
        return name

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with alone(self.layout):
            yield

    def _take(self, wanted: Iterator[str] | Sequence[str] | Mapping[str, object], cancel: Cancel) -> None:
        """The wanted steps are done: looks at each, plans what is missing, does that."""
        parts = {name: self._blueprint.parts[name] for name in wanted}
        with ThreadPoolExecutor(max_workers=len(parts)) as pool:
            answers = zip(parts, pool.map(lambda part: part.done(), parts.values()), strict=True)
            done = {name for name, answer in answers if answer}
        execute(missing([part.step for part in parts.values()], done), partial(self._act, cancel=cancel), cancel)

    def _act(self, name: str, cancel: Cancel) -> None:
        part = self._blueprint.parts[name]
        cancel.check()
        with self._reporter.task(name, part.expected_s) as task:
            part.act(task, cancel)


@contextmanager
def alone(layout: Layout) -> Iterator[None]:
    """Nobody else brings this lab up or down meanwhile. The lock is outside of the folder, which `down` removes."""
    path = cache.cache_root(os.environ) / "locks" / f"lab-{layout.id}"
    with cache.locked_or_refused(path, f"another `lab up` or `lab down` works on {layout.root}"):
        yield


def take_down(directory: str | os.PathLike[str], reporter: Reporter, *, keep_logs: bool = False) -> bool:
    """Nothing of a lab is left in this folder; False if there was none. Needs no readable lab.json."""
    layout = _layout(directory)
    if not layout.spec.exists():
        return False
    with alone(layout), reporter.live():
        teardown.take_down(layout, reporter, keep_logs=keep_logs)
    return True


def _layout(directory: str | os.PathLike[str]) -> Layout:
    return Layout(Path(directory).resolve())


def _silent() -> Reporter:
    return Reporter(Console(quiet=True), quiet=True)


def _hooks(folder: Path | None) -> str | None:
    """The folder as the lab keeps it. Raises Refused if Slurm's scripts are not where they should be in it."""
    if folder is None:
        return None
    if absent := [name for name in HOOKS if not (folder / name).is_dir()]:
        raise Refused("NO_HOOKS", f"--slurm-hooks {folder} has no folder {', '.join(absent)}", "see deploy/slurm")
    return str(folder.resolve())


def _design(layout: Layout, nodes: Sequence[NodeSpec] | None, base_port: int | None) -> LabSpec:
    """A new lab, checked (names, folder, ports), with its ports claimed."""
    nodes = tuple(nodes) if nodes else tuple(NodeSpec(name, DEFAULT_GPUS) for name in DEFAULT_NODES)
    problems = spec.spec_problems(nodes, base_port or spec.FIRST_BASE, layout.root)
    if base_port is not None:
        taken = ports.held(spec.Ports(base_port).all(len(nodes)))
        problems += [f"port {port} is in use by {holder}: use another --base-port" for port, holder in taken.items()]
    if problems:
        raise Refused("BAD_REQUEST", "no such lab can be made:" + "".join(f"\n  - {p}" for p in problems), "")
    if base_port is None:
        return LabSpec(nodes, _claim_any(layout.root, len(nodes)))
    _claim(base_port, layout.root)
    return LabSpec(nodes, base_port)


def _claim_any(root: Path, nodes: int) -> int:
    """The first port of a block that is now this lab's."""
    listening, claimed = ports.listeners(), set[int]()
    while True:
        base = spec.choose_base(root, nodes, listening, claimed)
        if ports.claim(base, root) is None:
            return base
        claimed.add(base)


def _claim(base: int, root: Path) -> None:
    if owner := ports.claim(base, root):
        raise Refused("PORTS_CLAIMED", f"ports from {base} belong to the lab in {owner}", "use another --base-port")


def _agree(found: LabSpec, nodes: Sequence[NodeSpec] | None, base_port: int | None, layout: Layout) -> LabSpec:
    """The lab that is there, if the request does not ask for another one."""
    if nodes is not None and tuple(nodes) != found.nodes:
        have = ", ".join(f"{n.name} ({n.gpus})" for n in found.nodes)
        raise Refused("OTHER_LAB", f"{layout.root} is a lab with nodes {have}", "`lab down` first, or another --dir")
    if base_port is not None and base_port != found.base_port:
        raise Refused("OTHER_LAB", f"{layout.root} uses ports from {found.base_port}", "`lab down` first")
    _claim(found.base_port, layout.root)
    return found
