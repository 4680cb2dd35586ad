"""Names, ports and folders of a lab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamig.errors import Refused
from lab.spec import (
    BLOCK,
    FIRST_BASE,
    LAST_BASE,
    LONGEST_SOCKETS,
    MAX_NODES,
    SOCKET_PATH_MAX,
    LabSpec,
    Layout,
    NodeSpec,
    Ports,
    choose_base,
    gpus_per_node,
    parse_spec,
    spec_problems,
)

ROOT = Path("/srv/lab")
GPUS = "h100-80gb-sxm5:2"


def nodes(*names: str) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(name, GPUS) for name in names)


def test_ports_of_the_largest_lab_are_distinct_and_within_its_block() -> None:
    ports = Ports(FIRST_BASE).all(MAX_NODES)
    assert len(set(ports)) == len(ports) == 8 + 3 * MAX_NODES
    assert all(FIRST_BASE <= port < FIRST_BASE + BLOCK for port in ports)


def test_pod_subnets_differ_between_nodes_and_neighbouring_blocks() -> None:
    first, second = LabSpec(nodes("a", "b"), 20_000), LabSpec(nodes("a", "b"), 20_100)
    subnets = {spec.pod_subnet(node) for spec in (first, second) for node in ("a", "b")}
    assert len(subnets) == 4
    assert not any(subnet.startswith("10.96.") for subnet in subnets)


def test_the_folders_own_block_is_kept_unless_somebody_has_it() -> None:
    own = choose_base(ROOT, 2, listening=(), claimed=())
    assert own == choose_base(ROOT, 2, listening=(80, 443), claimed=())
    assert choose_base(ROOT, 2, listening=(Ports(own).kubelet(1),), claimed=()) != own
    assert choose_base(ROOT, 1, listening=(Ports(own).kubelet(1),), claimed=()) == own
    assert choose_base(ROOT, 2, listening=(), claimed={own}) not in (own, None)


def test_the_search_for_ports_wraps_around_and_ends() -> None:
    every = set(range(FIRST_BASE, LAST_BASE + BLOCK, BLOCK))
    assert choose_base(ROOT, 1, (), every - {FIRST_BASE}) == FIRST_BASE
    assert choose_base(ROOT, 1, (), every - {LAST_BASE}) == LAST_BASE
    with pytest.raises(Refused, match="NO_PORTS"):
        choose_base(ROOT, 1, (), every)


def test_a_sound_request_has_no_problems() -> None:
    assert spec_problems(nodes("n1", "gpu-2"), 20_000, ROOT) == []


def test_all_problems_are_found_at_once() -> None:
    bad = (NodeSpec("N1", GPUS), NodeSpec("control", "h100"), NodeSpec("n2", GPUS), NodeSpec("n2", GPUS))
    found = "\n".join(spec_problems(bad, 80, Path("/srv/a lab")))
    for part in ("'N1'", "'control': the name is taken", "'h100'", "'n2': the name is taken", "80", "/srv/a lab"):
        assert part in found


@pytest.mark.parametrize(("excess", "refused"), [(0, False), (1, True)])
def test_a_folder_is_too_long_when_a_socket_below_it_would_be(excess: int, refused: bool) -> None:
    fixed = max(len(f"/nodes/n1/{socket}") for socket in LONGEST_SOCKETS)
    root = Path("/" + "x" * (SOCKET_PATH_MAX - fixed - 1 + excess))
    assert any("unix socket" in text for text in spec_problems(nodes("n1"), 20_000, root)) is refused


def test_a_spec_survives_its_file() -> None:
    spec = LabSpec(
        (NodeSpec("n1", GPUS), NodeSpec("n2", "a30-24gb:1")),
        20_300,
        with_driver=False,
        with_slurm=False,
        slurm_hooks="/srv/hooks",
        notebook=True,
    )
    assert parse_spec(spec.to_json(), ROOT) == spec


def test_a_lab_from_before_slurm_gets_it() -> None:
    text = json.dumps({"v": 1, "nodes": [{"name": "n1", "gpus": GPUS}], "base_port": 20_000, "with_driver": True})
    assert parse_spec(text, ROOT).with_slurm


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v": 1, "nodes": [{}], "base_port": 1, "with_driver": true}'])
def test_a_damaged_file_is_refused_by_name(text: str) -> None:
    with pytest.raises(Refused, match=r"/srv/lab/lab\.json"):
        parse_spec(text, ROOT / "lab.json")


def test_a_newer_file_is_refused_as_such() -> None:
    with pytest.raises(Refused, match="NEWER_LAB"):
        parse_spec(json.dumps({"v": 2}), ROOT / "lab.json")


def test_gpus_for_all_nodes_and_for_one() -> None:
    found = gpus_per_node(["n1", "n2"], ["a30-24gb:1", "n2=h100-80gb-sxm5:4,a30-24gb:1"], GPUS)
    assert found == (NodeSpec("n1", "a30-24gb:1"), NodeSpec("n2", "h100-80gb-sxm5:4,a30-24gb:1"))
    assert found[1].gpu_count == 5
    with pytest.raises(Refused, match="UNKNOWN_NODE"):
        gpus_per_node(["n1"], ["n7=a30-24gb:1"], GPUS)


def test_labs_in_different_folders_have_different_names_outside_of_them() -> None:
    assert Layout(ROOT).cgroup != Layout(ROOT / "x").cgroup
