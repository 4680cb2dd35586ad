"""What is exported, and that the reference says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dynamig.bridge.actions import Cancel
from dynamig.bridge.telemetry import OUTCOMES, Metrics, counts
from dynamig.mig import GpuUuid
from dynamig.protocol.slurm_jobs import Ending, SlurmNodeName
from tests.unit.bridge.stage import Stage, gpu, silent, wants

REFERENCE = Path(__file__).parents[3] / "docs/reference/bridge-metrics.md"


class Exported:
    """Metrics of a stage, as they are after each look."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def look(self, looks: int = 1) -> None:
        for _ in range(looks):
            before = len(self.stage.done)
            self.metrics.found(counts(self.stage.world()))
            self.stage.look()
            for action, outcome in self.stage.done[before:]:
                self.metrics.acted(action, outcome)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"dynamig_bridge_{name}", labels)


def test_the_reference_names_every_metric_with_its_type_and_labels() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    exported = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type) for family in registry.collect()
    }
    rows = re.findall(r"^\| `(dynamig_\w+)(?:\{[a-z, ]+\})?` \| (\w+) \|", REFERENCE.read_text(), re.MULTILINE)
    assert set(rows) == exported
    assert len(rows) == len(set(rows))
    assert {w for w in OUTCOMES if f"`{w}`" not in REFERENCE.read_text()} == set()


def test_gpus_that_do_not_answer_are_counted() -> None:
    exported = Exported(Stage(outages={gpu("n1", 0): silent(), GpuUuid("GPU-nobodys"): silent()}))
    exported.look()
    assert exported.value("unhealthy_gpus") == 1
    exported.stage.maps["n1"] = {}
    exported.look()
    assert exported.value("unhealthy_gpus") == 2, "without a map any may be Slurm's"


def test_the_reference_names_the_labels_that_are_used() -> None:
    exported = Exported(Stage())
    used = {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in exported.registry.collect()
    }
    text = REFERENCE.read_text()
    for name, labels in used.items():
        row = re.search(rf"^\| `{name}(?:_total)?(?:\{{([a-z, ]+)\}})?` ", text, re.MULTILINE)
        assert row is not None, name
        assert set((row[1] or "").split(", ")) - {""} == labels, name


def test_actions_by_kind_and_what_came_of_them() -> None:
    exported = Exported(Stage())
    exported.stage.sets.create_pod("a", wants("1g.10gb"))
    exported.look(4)
    for kind in ("note", "submit", "commit", "verify"):
        assert exported.value("actions_total", kind=kind, outcome="done") == 1
    assert exported.value("holds", state="running") == 1


def test_holds_ballast_and_bare_claims_are_those_of_the_last_look() -> None:
    stage = Stage()
    exported = Exported(stage)
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.leave_ballast("n2", 0, 3)
    exported.look()
    assert (exported.value("holds", state="running"), exported.value("ballast_jobs")) == (1, 1)
    stage.slurm.native |= {(SlurmNodeName(n), i) for n in ("n1", "n2") for i in (0, 1)}
    stage.slurm.end(1, Ending.NODE_FAIL)
    exported.look(12)
    assert (exported.value("bare_claims"), exported.value("holds", state="running")) == (1, 0)
    age = exported.value("bare_claims_oldest_age_seconds")
    assert age is not None
    assert 5 < age <= 12


def test_a_wrong_pick_is_counted_once() -> None:
    stage = Stage()
    exported = Exported(stage)
    stage.sets.create_pod("a", wants("1g.10gb"))
    exported.look()
    (job,) = stage.slurm.jobs.values()
    assert job.node is not None
    assert job.gpu is not None
    stage.foreign_on(job.node, job.gpu.index or 0)
    assert exported.value("wrong_picks_total") == 0
    exported.look(6)
    assert exported.value("wrong_picks_total") == 1
    (cancel,) = [action for action, _ in stage.done if isinstance(action, Cancel)]
    exported.metrics.acted(cancel, "failed")
    assert exported.value("wrong_picks_total") == 1, "it is tried again, and counted then"
    assert exported.value("actions_total", kind="cancel", outcome="failed") == 1


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_is_there_before_it_happens(outcome: str) -> None:
    exported = Exported(Stage())
    assert exported.value("looks_total", outcome=outcome) == 0


def test_whether_slurm_can_be_asked_is_what_the_last_look_found() -> None:
    exported = Exported(Stage())
    exported.metrics.leads(True)
    for outcome, wanted in (("slurm", 1), ("kubernetes", 1), ("complete", 0)):
        exported.metrics.looked(outcome, 0.1)
        assert exported.value("slurm_unreachable") == wanted


def test_one_that_stands_by_tells_nothing_of_what_it_found_before() -> None:
    stage = Stage()
    exported = Exported(stage)
    exported.metrics.leads(True)
    stage.sets.create_pod("a", wants("1g.10gb"))
    exported.look(4)
    exported.metrics.looked("slurm", 0.1)
    exported.metrics.leads(False)
    names = ("leading", "slurm_unreachable", "bare_claims", "failing_subjects")
    assert [exported.value(name) for name in names] == [0, 0, 0, 0]
    assert exported.value("holds", state="running") == 0


def test_what_is_exported_can_be_read() -> None:
    from prometheus_client import generate_latest

    text = generate_latest(Exported(Stage()).registry).decode()
    assert {f.name for f in text_string_to_metric_families(text)} >= {"dynamig_bridge_looks", "dynamig_bridge_holds"}
