"""The lab as data: every step can be reached, every identity is its own, every port is planned."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lab import nodes, pki
from lab.blueprint import Blueprint
from lab.cgroups import parse_hierarchies
from lab.daemons import Artifacts, machine_name
from lab.plan import in_order, missing
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

SPEC = LabSpec((NodeSpec("n1", "h100-80gb-sxm5:2"), NodeSpec("n2", "a30-24gb:1")), 20_000)
NAMES = ("n1", "n2")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def blueprint(layout: Layout) -> Blueprint:
    artifacts = Artifacts(Path("/cache/debian"), Path("/cache/kube"), Path("/cache/pause"))
    return Blueprint(layout, SPEC, artifacts, with_driver=True)


def test_every_need_is_a_step(blueprint: Blueprint) -> None:
    order = [step.name for step in in_order(blueprint.steps)]
    assert order.index("etcd") < order.index("kube-apiserver") < order.index("kubelet-n1") < order.index("driver-n1")
    assert order.index("debian-root") < order.index(machine_name(CONTROL))
    assert order.index("images-n2") < order.index("kubelet-n2")


def test_losing_one_node_concerns_that_node_only(blueprint: Blueprint) -> None:
    done = {step.name for step in blueprint.steps} - {"machine-n2"}
    lost = {"machine-n2", "containerd-n2", "kubelet-n2", "driver-n2"}
    assert {step.name for step in missing(blueprint.steps, done)} == lost


def test_losing_the_control_machine_leaves_nodes_and_drivers_alone(blueprint: Blueprint) -> None:
    done = {step.name for step in blueprint.steps} - {"machine-control"}
    inside = {"machine-control", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    assert {step.name for step in missing(blueprint.steps, done)} == inside


def test_the_driver_runs_on_the_host_and_everything_else_in_a_machine(blueprint: Blueprint) -> None:
    on_host = {name for name, daemon in blueprint.daemons.items() if daemon.machine is None}
    assert on_host == {"driver-n1", "driver-n2"}


def test_daemons_listen_on_the_planned_ports_each_on_its_own(blueprint: Blueprint) -> None:
    used = [port for daemon in blueprint.daemons.values() for port in daemon.ports]
    assert sorted(used) == sorted(SPEC.ports.all(len(NAMES)))


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
