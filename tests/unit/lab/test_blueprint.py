"""The lab as data: every step can be reached, every identity is its own, every port is planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lab import nodes, pki
from lab.blueprint import Blueprint
from lab.cgroups import parse_hierarchies
from lab.daemons import Artifacts, machine_name
from lab.plan import in_order, missing
from lab.probes import SlurmdProbe
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

SPEC = LabSpec((NodeSpec("n1", "h100-80gb-sxm5:2"), NodeSpec("n2", "a30-24gb:1")), 20_000)
NAMES = ("n1", "n2")
ARTIFACTS = Artifacts(*(Path("/cache") / name for name in ("debian", "kube", "pause", "notebook")))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def blueprint(layout: Layout) -> Blueprint:
    return Blueprint(layout, SPEC, ARTIFACTS, with_driver=True)


def test_every_need_is_a_step(blueprint: Blueprint) -> None:
    order = [step.name for step in in_order(blueprint.steps)]
    assert order.index("etcd") < order.index("kube-apiserver") < order.index("kubelet-n1") < order.index("driver-n1")
    assert order.index("debian-root") < order.index(machine_name(CONTROL))
    assert order.index("images-n2") < order.index("kubelet-n2")


def test_losing_one_node_concerns_that_node_only(blueprint: Blueprint) -> None:
    done = {step.name for step in blueprint.steps} - {"machine-n2"}
    lost = {"machine-n2", "containerd-n2", "kubelet-n2", "driver-n2", "munged-n2", "slurmd-n2"}
    assert {step.name for step in missing(blueprint.steps, done)} == lost


def test_losing_the_control_machine_leaves_nodes_and_drivers_alone(blueprint: Blueprint) -> None:
    done = {step.name for step in blueprint.steps} - {"machine-control"}
    kubernetes = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    inside = {"machine-control", *kubernetes, "munged-control", "slurmctld", "slurmrestd"}
    assert {step.name for step in missing(blueprint.steps, done)} == inside


def test_the_driver_runs_on_the_host_and_everything_else_in_a_machine(blueprint: Blueprint) -> None:
    on_host = {name for name, daemon in blueprint.daemons.items() if daemon.machine is None}
    assert on_host == {"driver-n1", "driver-n2"}


def test_daemons_listen_on_the_planned_ports_each_on_its_own(layout: Layout) -> None:
    blueprint = Blueprint(layout, replace(SPEC, slurm_hooks="/hooks"), ARTIFACTS, with_driver=True)
    used = [port for daemon in blueprint.daemons.values() for port in daemon.ports]
    assert sorted(used) == sorted(SPEC.ports.all(len(NAMES)))


def test_slurm_comes_in_order_and_a_slurmd_waits_for_its_gpus(blueprint: Blueprint) -> None:
    order = [step.name for step in in_order(blueprint.steps)]
    control = ("machine-control", "slurm-ground-control", "munged-control", "slurmctld", "slurmd-n1")
    node = ("machine-n1", "slurm-ground-n1", "munged-n1", "slurmd-n1")
    for chain in (control, node, ("gpus-n1", "slurmd-n1"), ("slurmctld", "slurm-resumed-n1", "slurmd-n1")):
        assert [name for name in order if name in chain] == list(chain)


def test_a_lab_without_slurm_has_none_of_it(layout: Layout) -> None:
    plain = Blueprint(layout, replace(SPEC, with_slurm=False), ARTIFACTS, with_driver=True)
    assert not [name for name in plain.parts if "slurm" in name or "munge" in name]


def test_a_lab_without_driver_has_slurm_nodes_without_gpus(layout: Layout) -> None:
    bare = Blueprint(layout, replace(SPEC, with_driver=False), ARTIFACTS, with_driver=False)
    assert "gpus-n1" not in bare.parts
    assert bare.daemons["slurmd-n1"].probe == SlurmdProbe("n1", "")


def test_only_machines_of_nodes_that_lend_see_the_host(layout: Layout) -> None:
    lending = Blueprint(layout, replace(SPEC, slurm_hooks="/hooks"), ARTIFACTS, with_driver=True)
    shown = {name for name, daemon in lending.daemons.items() if str(nodes.PYTHON[0]) in daemon.argv}
    assert shown == {"machine-n1", "machine-n2"}
    plain = Blueprint(layout, SPEC, ARTIFACTS, with_driver=True)
    assert not [name for name, daemon in plain.daemons.items() if str(nodes.PYTHON[0]) in daemon.argv]


def test_only_the_administrator_is_in_the_masters_group(layout: Layout) -> None:
    certificates = pki.certificates(layout, NAMES)
    assert [c.name for c in certificates if "system:masters" in c.groups] == ["admin"]
    users = {(c.user, c.groups) for c in certificates}
    assert ("system:node:n1", ("system:nodes",)) in users
    assert ("system:kube-scheduler", ()) in users
    assert ("system:kube-controller-manager", ()) in users


def test_what_opens_etcd_is_signed_by_its_own_authority(layout: Layout) -> None:
    by_authority = {c.name for c in pki.certificates(layout, NAMES) if c.authority == pki.ETCD_CA}
    assert by_authority == {"etcd", "etcd-client"}


def test_keys_of_the_administrator_are_outside_of_every_machine(layout: Layout) -> None:
    machines = [layout.machine(name) for name in (CONTROL, *NAMES)]
    for secret in (layout.pki, layout.admin_kubeconfig):
        assert not any(secret.is_relative_to(machine) for machine in machines)


def test_a_changed_configuration_is_another_digest(blueprint: Blueprint, layout: Layout) -> None:
    kubelet = blueprint.daemons["kubelet-n1"]
    layout.node("n1").mkdir(parents=True)
    before = kubelet.digest()
    (layout.node("n1") / "kubelet.yaml").write_text("a: 1")
    assert kubelet.digest() != before
    assert blueprint.daemons["kubelet-n2"].digest() != kubelet.digest()


def test_the_kubelet_answers_nobody_unknown(layout: Layout) -> None:
    config = yaml.safe_load(nodes.kubelet_config(layout, SPEC, "n2"))
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["port"] == SPEC.ports.kubelet(1)
    assert config["cgroupRoot"].endswith("/n2")


def test_cgroup_hierarchies_are_found_once_each() -> None:
    mounts = (
        "sysfs /sys sysfs rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    )
    assert parse_hierarchies(mounts) == (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/unified"))
