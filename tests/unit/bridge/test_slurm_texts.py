"""Every text that the bridge gives Slurm survives those who read squeue, sacct, sinfo and scontrol (case C-08)."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamig.protocol import names
from dynamig.protocol.device_status import MESSAGE_LIMIT
from dynamig.protocol.identity import purpose_of
from dynamig.protocol.slurm_jobs import SlurmNodeName
from dynamig.protocol.slurm_text import LONGEST, listed, slurm_json, slurm_text
from dynamig.protocol.times import to_rfc3339
from dynamig.slurm import v0_0_45 as wire
from dynamig.slurm.client import merged_extra
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.bridge.stage import NODES, UNITS, Stage, gpu, silent, wants

LONG = ".".join(["x-1" * 20] * 4)
"""A legal pod name of 243 characters, with dots."""
HOSTILE = 'GPU_LOST|7\nState=IDLE\t\x1e\x1f; "a,b" \\ β'
DOTTED = {n: SlurmNodeName(f"{n}.gpu.example.org") for n in NODES}


def fields_stay(texts: Iterable[str], separators: str = "|\x1f\t") -> None:
    """A line that Slurm prints has as many fields as were put into it: with `|` from sacct --parsable2 and for many of
    squeue's readers, with x1f for Open OnDemand."""
    fields = ["17", *texts, "RUNNING"]
    for separator in separators:
        line = separator.join(fields)
        assert line.splitlines() == [line]
        assert line.split(separator) == fields


def people_read(text: str) -> None:
    fields_stay([text], "|\x1f\t;")
    assert next(csv.reader([f"17,{text},RUNNING"])) == ["17", text, "RUNNING"]
    assert "=" not in text  # scontrol --oneliner show: its readers take blank, word, = for the next field
    assert re.fullmatch(r"[ -~]*", text)
    assert len(text.encode()) <= LONGEST


@given(st.text(max_size=2000) | st.from_regex(r"[|;,=\n\r\t \x1e\x1f\"'\\]{0,50}") | st.just("β" * 1500))
def test_no_text_for_people_does_harm(text: str) -> None:
    safe = slurm_text(text)
    people_read(safe)
    assert slurm_text(safe) == safe


JSON = st.recursive(st.text() | st.integers(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=8)


@given(JSON)
def test_no_json_does_harm_and_all_of_it_is_there(value: Any) -> None:
    text = slurm_json(value)
    assert json.loads(text) == value
    fields_stay([text])


@pytest.mark.parametrize("profile", ["4g.71gb", "1g.10gb+me", "1g.24gb+me.all", "1g.24gb-me", "1c.2g.20gb+gfx"])
def test_our_own_words_stay_as_they_are(profile: str) -> None:
    uuid = "7f1b2c3d-0000-4000-8000-00000000000a"
    text = f"Kubernetes pod team-a/a.b: {profile} at 6 of GPU-{uuid} MIG-{uuid} and whole GPU-{uuid} (1)"
    assert slurm_text(text) == text


def test_what_is_too_long_says_so_and_many_are_counted() -> None:
    assert slurm_text("x" * LONGEST) == "x" * LONGEST
    assert slurm_text("x" * (LONGEST + 1)).endswith("x ...")
    assert [listed("abcd"[:n]) for n in range(1, 5)] == ["a", "a and b", "a and b and 1 more", "a and b and 2 more"]


# -- all that the bridge gives Slurm -----------------------------------------------------------------------------------


def texts_of(stage: Stage) -> Iterator[dict[str, str]]:
    """As they go over the wire, a line for each job and each node."""
    for job_id, request in stage.slurm.requests.items():
        body = wire.submit_body(request, 5)["job"]
        yield {name: text for name, text in body.items() if isinstance(text, str)}
        yield {"name": body["name"], "comment": stage.slurm.jobs[job_id].comment}
    for node, said in stage.slurm.extra.items():
        yield {"node": node, "extra": merged_extra("", names.EXTRA_KEY, said[names.EXTRA_KEY], node)}
    for node, reason in stage.slurm.drained.items():
        yield {"node": node, "reason": reason}


def check(stage: Stage) -> None:
    lines = list(texts_of(stage))
    assert lines
    for texts in lines:
        fields_stay(texts.values())
        shown = " ".join(f"{name}={text}" for name, text in texts.items())  # scontrol --oneliner show
        assert re.findall(r"(?:^| )(\w+)=", shown) == list(texts)
        for name in {"comment", "reason"} & texts.keys():
            people_read(texts[name])
        if "name" in texts:
            assert re.fullmatch(r"[a-z-]+", texts["name"])


@pytest.fixture
def stage() -> Stage:
    slurm = FakeSlurm(dict.fromkeys(DOTTED.values(), (UNITS.count,) * 2))
    return Stage(slurm=slurm, slurm_names=DOTTED)


def report(stage: Stage, profile: str, uuid: str) -> None:
    """Its driver says what each claim has become, in such words."""
    at = to_rfc3339(stage.now)
    for claim in stage.sets.claims.values():
        for result in claim["status"]["allocation"]["devices"]["results"]:
            data = {"gpuUUID": f"GPU-{uuid}", "uuid": f"MIG-{uuid}", "profile": profile, "placement": {"start": 1}}
            condition = {"type": names.PREPARED, "status": "True", "reason": "Prepared", "message": "x"}
            entry = {k: result[k] for k in ("driver", "pool", "device")}
            entry |= {"conditions": [condition | {"lastTransitionTime": at}], "data": data}
            claim["status"].setdefault("devices", []).append(entry)
        claim["metadata"]["resourceVersion"] += "0"


def test_many_pods_with_long_names_on_nodes_with_dots(stage: Stage) -> None:
    """One claim for all of them: its job would have a comment of 5 kB, which slurmctld refuses."""
    stage.sets.create_claim("shared", wants("3g.40gb"))
    for number in range(20):
        stage.sets.create_pod(f"{LONG}.{number}", uses=["shared"])
    stage.settle(looks=60)
    assert all(pod["status"]["phase"] == "Running" for pod in stage.sets.pods.values())
    report(stage, "3g.40gb", "1")
    stage.settle()
    check(stage)
    comments = [job.comment for job in stage.slurm.jobs.values()]
    assert any(" and 18 more: 3g.40gb at 1 of GPU-1 MIG-1" in comment for comment in comments)
    purposes = [purpose_of(request.purpose.to_admin_comment()) for request in stage.slurm.requests.values()]
    assert purposes == [request.purpose for request in stage.slurm.requests.values()]
    assert {node for p in purposes if p for node in p.nodes} <= set(DOTTED.values())


@pytest.mark.parametrize("profile", ["1g.10gb+me", "1x.24gb~new.kind|β", HOSTILE, "x" * MESSAGE_LIMIT])
def test_whatever_a_device_is_called(stage: Stage, profile: str) -> None:
    stage.sets.create_pod("a.b", wants("1g.10gb"), wants("2g.20gb"))
    stage.settle()
    report(stage, profile, "1|2")
    stage.settle()  # and comes to rest: what is compared is what was written
    check(stage)
    [job] = stage.slurm.jobs.values()
    assert job.comment.startswith("Kubernetes pod ns/a.b: ")


def test_whatever_is_heard_of_a_gpu(stage: Stage) -> None:
    stage.outages = {gpu("n1", 1): silent(HOSTILE), gpu("n1", 0): silent("NVML_TIMEOUT")}
    stage.settle()
    check(stage)
    [reason] = stage.slurm.drained.values()
    assert reason.startswith("dynamig: GPU 0: NVML_TIMEOUT (GPU-n1-0 does not answer) and GPU 1: ")
    stage.outages = {}
    stage.settle()
    assert stage.slurm.drained == {}


def test_what_others_wrote_into_extra_stays_whatever_it_is() -> None:
    text = merged_extra(json.dumps({"site": HOSTILE}), names.EXTRA_KEY, {"claims": []}, "n1")
    assert json.loads(text) == {"site": HOSTILE, "dynamig": {"claims": []}}
    fields_stay([text])
