"""Everything a lab consists of, as steps: what to do, how to see that it is done, and what has to be there before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dynamig.errors import Unavailable
from lab import bridge, cache, components, debian, images, kubernetes, machines, nodes, notebook, oci
from lab.commands import run
from lab.components import DriverFiles
from lab.daemons import Artifacts, Daemon, api, control_plane, machine_name
from lab.execute import Cancel, wait_for
from lab.plan import Step
from lab.preflight import Needs
from lab.progress import Task
from lab.slurm import answers, clients
from lab.slurm import daemons as slurm
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

ACCOUNT_S = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """A step with its effects; `done` looks at the world."""

    step: Step
    act: Callable[[Task, Cancel], None]
    done: Callable[[], bool]
    expected_s: float | None = None


def artifacts(environ: Mapping[str, str] = os.environ) -> Artifacts:
    """Where the cached things of this version are, or will be. Raises Refused for a KUBE_BIN_DIR that lacks some."""
    root = cache.cache_root(environ)
    own = environ.get("KUBE_BIN_DIR")
    return Artifacts(
        debian=root / "debian" / debian.recipe_digest(),
        kube=kubernetes.ready_made(Path(own)) if own else root / "kubernetes" / kubernetes.recipe_digest(),
        pause=root / "pause" / images.pause_digest(),
        notebook=root / "notebook" / notebook.recipe_digest(debian.recipe_digest()),
    )


def needs(have: Artifacts) -> Needs:
    return Needs(kubernetes=not have.kube.exists(), debian=not have.debian.exists(), pause=not have.pause.exists())


class Blueprint:
    """The parts of one lab, by name, and the daemons among them."""

    def __init__(self, layout: Layout, spec: LabSpec, have: Artifacts, *, with_driver: bool) -> None:
        self._layout, self._spec, self._have = layout, spec, have
        self.daemons: dict[str, Daemon] = {}
        self.parts: dict[str, Part] = {}
        self._add_artifacts()
        self._add_control()
        for node in spec.nodes:
            self._add_node(node.name)
        if with_driver:
            self._add("manifests", self._manifests, needs=("kube-apiserver",))
            for node in spec.nodes:
                self._add_gpus(node)
                self._add_driver(node.name)
        if spec.with_slurm:
            self._add_slurm()
        if spec.lends:
            self._add_bridge()

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(part.step for part in self.parts.values())

    def kubectl(self, *args: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Standard output of kubectl as the lab's administrator."""
        kubectl = [str(self._have.kube / "kubectl"), f"--kubeconfig={self._layout.admin_kubeconfig}"]
        return run([*kubectl, *args], stdin=stdin, timeout_s=timeout_s)

    def _add(
        self,
        name: str,
        act: Callable[[Task, Cancel], None],
        done: Callable[[], bool] = lambda: False,
        needs: tuple[str, ...] = (),
        expected_s: float | None = None,
    ) -> None:
        self.parts[name] = Part(Step(name, frozenset(needs)), act, done, expected_s)

    def _add_daemon(self, daemon: Daemon) -> None:
        dies_with = daemon.relies_on
        if daemon.machine is not None and not daemon.makes_machine:
            dies_with |= {machine_name(daemon.machine)}
        self.daemons[daemon.name] = daemon
        self.parts[daemon.name] = Part(
            Step(daemon.name, daemon.needs, dies_with),
            act=lambda task, cancel: machines.ensure(self._layout, daemon, cancel, task.tell),
            done=lambda: machines.look(self._layout, daemon).done,
        )

    def _add_artifacts(self) -> None:
        have = self._have
        self._add_cached("debian-root", have.debian, debian.build, debian.BOOTSTRAP_S)
        self._add_cached("kubernetes", have.kube, kubernetes.build, kubernetes.BUILD_S)
        self._add_cached("pause", have.pause, images.build_pause, None)
        if self._spec.notebook:
            build = partial(notebook.build, have.debian)
            self._add_cached("notebook", have.notebook, build, notebook.BUILD_S, needs=("debian-root",))

    def _add_cached(
        self,
        name: str,
        target: Path,
        build: Callable[[Path, Task, Cancel, Path], None],
        expected_s: float | None,
        needs: tuple[str, ...] = (),
    ) -> None:
        log = self._layout.log(f"build-{name}")

        def act(task: Task, cancel: Cancel) -> None:
            def fill(folder: Path) -> None:
                build(folder, task, cancel, log)

            cache.cached(target, fill, cancel, lambda: task.tell("another lab is making it; waiting"))

        self._add(name, act, target.exists, needs, expected_s)

    def _add_control(self) -> None:
        for daemon in control_plane(self._layout, self._spec, self._have):
            self._add_daemon(daemon)
        server = api(self._layout, self._spec)

        def roles(task: Task, cancel: Cancel) -> None:
            components.apply(self.kubectl, [components.LAB_ROLES])

        def account_problem() -> str | None:
            try:
                found = server.get_json("/api/v1/namespaces/default/serviceaccounts/default")
            except Unavailable as error:
                return str(error)
            return None if found else "not there"

        def account(task: Task, cancel: Cancel) -> None:
            if reason := wait_for(account_problem, ACCOUNT_S, cancel):
                raise Unavailable(
                    "NO_ACCOUNT", f"default service account: {reason}", "`lab logs kube-controller-manager`"
                )

        self._add("lab-roles", roles, needs=("kube-apiserver",))
        self._add("default-account", account, lambda: account_problem() is None, needs=("kube-controller-manager",))

    def _add_node(self, name: str) -> None:
        for daemon in nodes.daemons(self._layout, self._spec, name, self._have):
            self._add_daemon(daemon)
        self._add(
            f"images-{name}",
            lambda task, cancel: self._import_images(name),
            needs=(f"containerd-{name}", "debian-root", "pause", *(("notebook",) if self._spec.notebook else ())),
        )

    def _import_images(self, node: str) -> None:
        """The node has exactly the images that can be made now."""
        nvml_list = components.NVML_LIST if components.NVML_LIST.exists() else None
        wanted = (images.pause_image(self._have.pause), *images.tool_images(self._have.debian, nvml_list))
        ctr = ("ctr", f"--address={nodes.containerd_socket(self._layout, node)}", "--namespace=k8s.io", "images")
        present = parse_images(machines.run_inside(self._layout, node, [*ctr, "ls"]))
        archive = self._layout.node(node) / "run/image.tar"
        makers = {image.reference: (image.manifest_digest, partial(oci.write, image)) for image in wanted}
        if self._spec.notebook:
            made = (self._have.notebook / notebook.DIGEST).read_text()
            makers[notebook.REFERENCE] = (made, partial(shutil.copyfile, self._have.notebook / notebook.ARCHIVE))
        for reference, (digest, write) in makers.items():
            if present.get(reference) != digest:
                write(archive)
                machines.run_inside(self._layout, node, [*ctr, "import", "--snapshotter=overlayfs", str(archive)])
                archive.unlink()

    def _manifests(self, task: Task, cancel: Cancel) -> None:
        components.apply(self.kubectl, components.manifest_files(components.MANIFESTS))

    def _add_gpus(self, node: NodeSpec) -> None:
        files = DriverFiles(self._layout.node(node.name))
        self._add(f"gpus-{node.name}", lambda task, cancel: components.init_emulator(files, node.gpus, node.name))

    def _add_driver(self, name: str) -> None:
        files, spec = DriverFiles(self._layout.node(name)), self._spec

        def prepare(task: Task, cancel: Cancel) -> None:
            components.ensure_token(self.kubectl, api(self._layout, spec), files, name)

        self._add(f"driver-files-{name}", prepare, needs=("manifests", f"kubelet-{name}", f"gpus-{name}"))
        self._add_daemon(components.driver(self._layout, spec, name))

    def _add_slurm(self) -> None:
        layout, spec = self._layout, self._spec
        self._add_ground(CONTROL)
        for daemon in slurm.control_daemons(layout, spec):
            self._add_daemon(daemon)
        for node in spec.nodes:
            self._add_slurm_node(node.name)

    def _add_bridge(self) -> None:
        def tokens(task: Task, cancel: Cancel) -> None:
            asked = ["scontrol", "token", f"username={bridge.SLURM_USER}", f"lifespan={components.TOKEN_S}"]
            bridge.write_tokens(self._layout, self.kubectl, answers.token(clients.run_as(self._layout, "root", asked)))

        self._add("bridge-files", tokens, needs=("manifests", "slurmctld"))
        self._add_daemon(bridge.daemon(self._layout, self._spec))

    def _add_slurm_node(self, node: str) -> None:
        self._add_ground(node)
        self._add(slurm.resumed_name(node), lambda task, cancel: slurm.resume(self._layout, node), needs=("slurmctld",))
        for daemon in slurm.node_daemons(self._layout, self._spec, node):
            self._add_daemon(daemon)

    def _add_ground(self, machine: str) -> None:
        self._add(
            slurm.ground_name(machine),
            lambda task, cancel: slurm.prepare_ground(self._layout, machine),
            needs=(machine_name(machine),),
        )


def parse_images(table: str) -> dict[str, str]:
    """Reference -> manifest digest, from `ctr images ls`."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {row[0]: row[2] for row in rows if len(row) > 2}
