"""`driver status` says in words what is offered and why not more."""

from __future__ import annotations

from typing import Any

from dynamig.cli.output import Page
from dynamig.cli.status import adopted_text, damaged_words, foreign_words, quarantined_words, status_text
from dynamig.mig import GiId, GiProfileId, GpuUuid, Placement
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import LiveInstance

GPU = {"pool": "n1/gpu-0", "uuid": "GPU-0", "product": "NVIDIA H100 80GB HBM3", "minor": 0, "migMode": "on"}
WIDE = Page(None, False)


def body(**changes: Any) -> dict[str, Any]:
    gpu = {**GPU, "devices": 26, "offered": 16, "note": "", "foreign": ["2g.20gb on memory slices 2-3"]}
    gpu["leftOut"] = []
    claims = [{"claim": "ml/c (uid)", "state": "prepared", "devices": ["gpu-0-mig-1g10gb-19-6"]}]
    told = {
        "node": "n1",
        "ready": True,
        "registered": True,
        "gpus": [gpu],
        "claims": claims,
        "slurm": None,
        "outages": {},
    }
    return told | changes


def lines(told: dict[str, Any], page: Page = WIDE) -> list[str]:
    return [line for line in status_text(told, page).plain.splitlines() if line]


def test_what_is_offered_is_counted_and_what_is_in_the_way_is_named() -> None:
    (line,) = [text for text in lines(body()) if "n1/gpu-0" in text]
    assert line.endswith("16 of 26 devices offered; foreign 2g.20gb on memory slices 2-3")


def test_a_gpu_that_does_not_answer_says_so() -> None:
    lost = {"heard": "GPU_LOST", "since": "2026-01-01T00:00:00Z"}
    told = lines(body(outages={"GPU-0": lost, "GPU-never-read": lost}))
    words = "does not answer since 2026-01-01T00:00:00Z: GPU_LOST"
    assert any("n1/gpu-0" in line and words in line for line in told)
    assert f"GPU-never-read {words}" in told


def test_a_gpu_that_is_watched_says_until_when() -> None:
    watched = {"heard": "GPU_LOST", "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:10:00Z"}
    (line,) = [text for text in lines(body(outages={"GPU-0": watched})) if "n1/gpu-0" in text]
    assert "answers again after GPU_LOST, offered again at 2026-01-01T00:10:00Z if it goes on" in line


def test_a_profile_that_cannot_be_used_is_named() -> None:
    told = body()
    told["gpus"][0]["leftOut"] = ["profile '9z' (ID 4242) has no placement"]
    assert any("; left out: profile '9z' (ID 4242) has no placement; foreign" in line for line in lines(told))


def test_claims_are_shown_and_so_is_that_there_are_none() -> None:
    assert lines(body())[-1].split() == ["ml/c", "(uid)", "prepared", "gpu-0-mig-1g10gb-19-6"]
    assert lines(body(claims=[]))[-1] == "no claim has anything here"


def test_a_narrow_terminal_has_the_offer_below() -> None:
    narrow = lines(body(claims=[]), Page(80, False))
    assert max(map(len, narrow)) <= 80
    assert narrow[3] == "  16 of 26 devices offered; foreign 2g.20gb on memory slices 2-3"


def test_a_loan_is_told_with_its_job() -> None:
    loan = {"gpu": "GPU-0", "job": {"id": 7}, "why": "it is not over"}
    assert any("lent to Slurm job 7: it is not over" in line for line in lines(body(slurm={"loans": [loan]})))
    assert any("record cannot be read" in line for line in lines(body(slurm={"damagedLoans": {"GPU-0": "f"}})))


def test_a_driver_that_is_not_ready_says_why() -> None:
    assert lines(body(ready=False, whyNotReady="no device"))[0] == "driver on n1: not ready: no device"


def test_a_foreign_instance_of_an_unknown_profile_has_its_number() -> None:
    assert (
        foreign_words(LiveInstance(GiId(3), GiProfileId(14), Placement(2, 1)), None) == "profile 14 on memory slice 2"
    )


def test_a_quarantined_instance_names_the_claim_that_may_adopt_it() -> None:
    foreign = LiveInstance(GiId(3), GiProfileId(14), Placement(2, 2))
    line = quarantined_words(GpuUuid("GPU-0"), foreign, None, ())
    assert line == "foreign profile 14 on memory slices 2-3 of GPU-0: left alone"
    longer = quarantined_words(GpuUuid("GPU-0"), foreign, None, [ClaimRef("ml", "c", "uid")])
    assert longer.startswith(line)
    assert "claim ml/c (uid)" in longer
    assert longer.endswith("`dynamig driver adopt uid`")


def test_a_damaged_record_is_named_with_the_way_out() -> None:
    line = damaged_words("uid", "/var/lib/dynamig/claims/uid.json")
    assert line.startswith("/var/lib/dynamig/claims/uid.json: ")
    assert "`dynamig driver adopt uid`" in line


def test_what_was_adopted_is_told_with_what_was_kept() -> None:
    device = {"pool": "n1/gpu-0", "device": "gpu-0-mig", "uuid": "MIG-1"}
    told = {"claim": "ml/c (uid)", "fresh": True, "devices": [device], "kept": None}
    assert adopted_text(told).plain == "claim ml/c (uid) has n1/gpu-0/gpu-0-mig: MIG-1"
    assert (
        adopted_text({**told, "kept": "x.damaged"}).plain.splitlines()[1] == "its damaged record is kept as x.damaged"
    )
    assert "had already" in adopted_text({**told, "fresh": False}).plain
