"""What the watchers of tests/slurm take for a violation, and what not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynamig.protocol.claims import AllocatedDevice, ClaimRef, ClaimView
from tests.slurm.faults import Match, Request
from tests.slurm.native import Look, read_look, violations
from tests.slurm.witness import overlaps
from tests.slurm.writes import KUBERNETES, SLURM

POOL = "n1/gpu-0"
DEVICES = {
    (POOL, "left"): frozenset({(POOL, 0), (POOL, 1)}),
    (POOL, "middle"): frozenset({(POOL, 1), (POOL, 2)}),
    (POOL, "right"): frozenset({(POOL, 2), (POOL, 3)}),
}


def listed(*, on: int | None = None) -> str:
    """As nvml-list prints it for two GPUs, with one instance on the GPU of that minor."""
    gpus: list[dict[str, Any]] = [{"uuid": f"GPU-{minor}", "minor": minor, "mig_current": 0} for minor in range(2)]
    if on is not None:
        instance = {"profile_id": 19, "start": 4, "compute_instances": []}
        gpus[on] |= {"mig_current": 1, "gpu_instances": [instance]}
    return json.dumps({"gpus": gpus})


def test_a_look_at_empty_gpus_is_no_violation() -> None:
    look = read_look("n1", f"LOOK 7 0,1 1700000000 none {listed()}")
    assert look == Look("n1", 7, 1700000000, ())
    assert violations([look]) == []


def test_an_instance_counts_on_the_jobs_own_gpus_only() -> None:
    ours = read_look("n1", f"LOOK 7 0,1 1700000000 none {listed(on=1)}")
    others = read_look("n1", f"LOOK 8 0 1700000000 none {listed(on=1)}")
    assert ours.instances == ("profile 19 at 4 of GPU-1",)
    assert violations([others, ours]) == [ours]


def test_a_container_that_has_one_of_the_jobs_gpus_counts_though_there_is_no_instance() -> None:
    ours = read_look("n1", f"LOOK 7 0,1 1700000000 1,12 {listed()}")
    others = read_look("n1", f"LOOK 8 2 1700000000 1,12 {listed()}")
    assert (ours.instances, ours.in_containers) == ((), (1,))
    assert violations([others, ours]) == [ours]


def test_a_look_that_failed_is_not_taken_for_an_empty_gpu() -> None:
    with pytest.raises(ValueError):
        read_look("n1", "LOOK 7 0,1 1700000000 none unreadable")
    with pytest.raises(ValueError):
        read_look("n1", f"LOOK 7 0,1 1700000000 unreadable {listed()}")


def test_a_reader_that_may_not_see_instances_is_not_believed() -> None:
    gpu = {"uuid": "GPU-0", "minor": 0, "mig_current": 1}
    with pytest.raises(ValueError, match="may not see"):
        read_look("n1", f"LOOK 7 0 1700000000 none {json.dumps({'gpus': [gpu]})}")


def claim(uid: str, device: str) -> ClaimView:
    allocated = (AllocatedDevice("mig", "gpu.nvidia.com", POOL, device),)
    return ClaimView(ClaimRef("ns", uid, uid), "1", False, frozenset(), {}, allocated)


def test_claims_overlap_where_their_memory_slices_do() -> None:
    assert overlaps([claim("a", "left"), claim("b", "right")], DEVICES) == set()
    (found,) = overlaps([claim("a", "left"), claim("b", "right"), claim("c", "left")], DEVICES)
    assert found == "ns/a (a) and ns/c (c) share [('n1/gpu-0', 0), ('n1/gpu-0', 1)]"
    assert len(overlaps([claim("a", "left"), claim("b", "right"), claim("c", "middle")], DEVICES)) == 2


CLAIM = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c"
POD = "/api/v1/namespaces/ns/pods/p"
EACH = {
    "submit": ("POST", "/slurm/v0.0.45/job/submit", ""),
    "comment": ("POST", "/slurm/v0.0.45/job/7", ""),
    "cancel": ("DELETE", "/slurm/v0.0.45/job/sAAAA", ""),
    "extra": ("POST", "/slurm/v0.0.45/node/n1", ""),
    "note": ("PATCH", CLAIM, '{"metadata":{"annotations":{"dynamig.io/hold":"{}"}}}'),
    "allocate": ("PATCH", f"{CLAIM}/status", '{"status":{"allocation":{"devices":{}}}}'),
    "verify": ("PATCH", CLAIM, '{"metadata":{"annotations":{"dynamig.io/verified":"2026"}}}'),
    "ungate": ("PATCH", POD, '{"spec":{"schedulingGates":null}}'),
    "tell": ("PATCH", f"{POD}/status", '{"status":{"conditions":[]}}'),
    "release": ("PATCH", CLAIM, '{"metadata":{"annotations":{"dynamig.io/release":"2026"}}}'),
    "let_go": ("PATCH", CLAIM, '{"metadata":{"annotations":{"dynamig.io/hold":null}}}'),
    "end": ("DELETE", POD, ""),
}
OTHERS = [
    ("POST", "/slurm/v0.0.45/node/dynamig-asks-for-its-rights", ""),
    ("PATCH", f"{CLAIM}/status", '{"status":{"allocation":null}}'),
    ("PATCH", CLAIM, '{"metadata":{"annotations":{"dynamig.io/verified":null}}}'),
    ("GET", CLAIM, ""),
]


def fitting(method: str, path: str, body: str) -> list[str]:
    request = Request(method, path, "", (), body.encode())
    known: dict[str, Match] = {**SLURM, **KUBERNETES}
    return [name for name, match in known.items() if match.fits(request)]


def test_each_kind_of_write_is_told_from_all_others() -> None:
    assert {name: fitting(*request) for name, request in EACH.items()} == {name: [name] for name in EACH}
    assert set(EACH) == {*SLURM, *KUBERNETES}
    assert [fitting(*request) for request in OTHERS] == [[]] * len(OTHERS)
