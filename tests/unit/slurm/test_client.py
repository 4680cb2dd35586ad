"""The client against recorded answers: what is concluded, and what is sent."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from dynamig.errors import Conflict, Refused, Unavailable
from dynamig.protocol.identity import JobIdentity, JobKey, Purpose
from dynamig.protocol.seen import Found, Gone, Unknown
from dynamig.protocol.slurm_jobs import HoldRequest, SlurmNodeName
from dynamig.slurm import JobChanges, SlurmClient, connect, token_file
from dynamig.slurm.client import merged_extra
from dynamig.slurm.rest import PROOF_SECONDS, Rest
from tests.unit.slurm.replay import RIGHTS, Replay
from tests.unit.slurm.test_wire import job, request

RUNNING = job("job-running").key
PENDING = job("job-pending").key
GET = f"GET /job/{RUNNING.job_id}"
DELETE = f"DELETE /job/{RUNNING.since}"
IMPOSTOR = JobKey(RUNNING.job_id, "sAAAAAAAAAAA00")


def hold(identity: JobIdentity, **other: object) -> HoldRequest:
    return request(Purpose(identity, "ns/p", frozenset({"c1"}), ("n1", "n2"), 3), **other)


def test_a_job_is_found_gone_or_unknown(replay: Replay, client: SlurmClient) -> None:
    replay.on(GET, "job-running", "job-unknown", "dead-job", "no-token", "unknown-version")
    assert isinstance(client.same_job(RUNNING), Found)
    assert isinstance(client.same_job(RUNNING), Gone)
    for _ in range(3):
        assert isinstance(client.same_job(RUNNING), Unknown)


def test_an_id_that_was_given_out_again_is_another_job(replay: Replay, client: SlurmClient) -> None:
    replay.on(GET, "job-running")
    assert isinstance(client.job(RUNNING.job_id), Found)
    gone = client.same_job(IMPOSTOR)
    assert isinstance(gone, Gone)
    assert RUNNING.since in gone.proof


def test_a_cancel_names_the_sluid(replay: Replay, client: SlurmClient) -> None:
    replay.on(GET, "job-running").on(DELETE, "cancel")
    client.cancel(RUNNING)
    assert replay.whats() == [GET, RIGHTS, DELETE]


@pytest.mark.parametrize("answer", ["cancel-again", "cancel-unknown"])
def test_a_job_that_ended_meanwhile_is_cancelled(replay: Replay, client: SlurmClient, answer: str) -> None:
    replay.on(GET, "job-running").on(DELETE, answer)
    client.cancel(RUNNING)
    assert DELETE in replay.whats()


def test_a_job_that_is_gone_or_another_one_is_not_cancelled(replay: Replay, client: SlurmClient) -> None:
    replay.on(GET, "job-unknown", "job-running")
    client.cancel(RUNNING)
    client.cancel(IMPOSTOR)
    assert not [what for what in replay.whats() if what.startswith("DELETE")]


def test_a_cancel_that_did_not_reach_the_controller_did_not_happen(replay: Replay, client: SlurmClient) -> None:
    """slurmrestd answers 403 then; read as "forbidden" it would look final."""
    replay.on(GET, "job-running").on(DELETE, "dead-cancel")
    with pytest.raises(Unavailable):
        client.cancel(RUNNING)
    replay.on(GET, "dead-job")
    with pytest.raises(Unavailable):
        client.cancel(RUNNING)


def test_no_delete_is_sent_with_a_token_that_is_not_proven(replay: Replay, client: SlurmClient) -> None:
    replay.on(GET, "job-running").on(DELETE, "cancel")
    for answer, error in (("rights-none", Refused), ("dead-update", Unavailable), ("no-token", Refused)):
        replay.on(RIGHTS, answer)
        with pytest.raises(error):
            client.cancel(RUNNING)
    assert DELETE not in replay.whats()


def test_a_job_without_sluid_is_left_to_people(replay: Replay, client: SlurmClient, monkeypatch: Any) -> None:
    old = JobKey(RUNNING.job_id, "1795974241")
    monkeypatch.setattr(client, "same_job", lambda key: Found(job("job-running")))
    with pytest.raises(Refused, match="NO_SLUID"):
        client.cancel(old)
    assert replay.asked == []


def test_rights_are_asked_once_for_each_token(replay: Replay) -> None:
    tokens = ["first"]
    client = connect(replay.url, "dynamig", lambda: tokens[-1])
    replay.on(GET, "job-running").on(DELETE, "cancel")
    client.cancel(RUNNING)
    client.cancel(RUNNING)
    tokens.append("renewed")
    client.cancel(RUNNING)
    assert [asked.token for asked in replay.asked if asked.what == RIGHTS] == ["first", "renewed"]


def test_rights_are_asked_again_after_a_while(replay: Replay) -> None:
    now = [0.0]
    client = SlurmClient(Rest(replay.url, "dynamig", lambda: "token", lambda: now[0]))
    client.check_rights()
    now[0] = PROOF_SECONDS - 1
    client.check_rights()
    now[0] = PROOF_SECONDS + 1
    replay.on(RIGHTS, "rights-none")
    with pytest.raises(Refused, match="SLURM_FORBIDDEN"):
        client.check_rights()


def test_a_submit_answers_with_the_key_of_its_own_job(replay: Replay, client: SlurmClient) -> None:
    replay.on("POST /job/submit", "submit").on(GET, "job-running")
    assert client.submit(hold(JobIdentity("3f1c", 1))) == RUNNING
    body = next(asked.body for asked in replay.asked if asked.what == "POST /job/submit")
    assert '"set":"3f1c"' in body["job"]["admin_comment"]


def test_a_submitted_job_whose_id_another_one_has_is_lost(replay: Replay, client: SlurmClient) -> None:
    replay.on("POST /job/submit", "submit").on(GET, "job-running")
    with pytest.raises(Unavailable, match="JOB_LOST"):
        client.submit(hold(JobIdentity("3f1c", 2)))


def test_a_submit_without_limit_takes_the_partitions(replay: Replay, client: SlurmClient) -> None:
    replay.on("POST /job/submit", "submit").on(GET, "job-running")
    replay.on("GET /partition/kubernetes", "partition")
    client.submit(hold(JobIdentity("3f1c", 1), minutes=None))
    body = next(asked.body for asked in replay.asked if asked.what == "POST /job/submit")
    assert body["job"]["time_limit"] == {"set": True, "infinite": True}
    replay.on("GET /partition/kubernetes", "partition-unknown")
    with pytest.raises(Refused, match="UNKNOWN_PARTITION"):
        client.submit(hold(JobIdentity("3f1c", 1), minutes=None))


def test_a_submit_that_failed_says_in_which_way(replay: Replay, client: SlurmClient) -> None:
    replay.on("POST /job/submit", "submit-impossible", "dead-submit")
    with pytest.raises(Refused, match="SLURM_2014"):
        client.submit(hold(JobIdentity("3f1c", 1)))
    with pytest.raises(Unavailable):
        client.submit(hold(JobIdentity("3f1c", 1)))


def test_an_update_reaches_only_the_job_that_was_meant(replay: Replay, client: SlurmClient) -> None:
    where = f"/job/{PENDING.job_id}"
    replay.on(f"GET {where}", "job-pending").on(f"POST {where}", "update", "update-ended")
    client.update(PENDING, JobChanges(comment="x"))
    assert replay.asked[-1].body == {"comment": "x"}
    with pytest.raises(Conflict, match="JOB_ENDED"):
        client.update(PENDING, JobChanges(comment="x"))
    sent = len(replay.asked)
    with pytest.raises(Conflict, match="JOB_ENDED"):
        client.update(JobKey(PENDING.job_id, IMPOSTOR.since), JobChanges(comment="x"))
    assert replay.whats()[sent:] == [f"GET {where}"]


def test_resources_of_a_job_that_does_not_run_are_gone(replay: Replay, client: SlurmClient) -> None:
    replay.on(f"GET /resources/{PENDING.job_id}", "resources-pending", "dead-job")
    assert isinstance(client.resources(PENDING.job_id), Gone)
    assert isinstance(client.resources(PENDING.job_id), Unknown)


def test_a_node_is_gone_only_when_all_others_were_listed(replay: Replay, client: SlurmClient) -> None:
    replay.on("GET /nodes/", "nodes", "nodes", "dead-states")
    assert isinstance(client.node("n2"), Found)
    assert isinstance(client.node("n9"), Gone)
    assert isinstance(client.node("n2"), Unknown)


def test_extra_is_written_once(replay: Replay, client: SlurmClient) -> None:
    replay.on("GET /nodes/", "nodes").on("POST /node/n1", "update")
    assert client.write_extra(SlurmNodeName("n1"), "dynamig", {"0": "pod"})
    assert replay.asked[-1].body == {"extra": '{"dynamig":{"0":"pod"}}'}
    assert not client.write_extra(SlurmNodeName("n1"), "dynamig", None)
    assert replay.whats().count("POST /node/n1") == 1
    with pytest.raises(Unavailable):
        client.write_extra(SlurmNodeName("n9"), "dynamig", {})


def test_a_drain_begins_with_our_name(replay: Replay, client: SlurmClient) -> None:
    replay.on("GET /nodes/", "nodes").on("POST /node/n1", "update")
    client.drain(SlurmNodeName("n1"), "GPU 0 does not answer")
    assert replay.asked[-1].body == {"state": ["DRAIN"], "reason": "dynamig: GPU 0 does not answer"}
    client.undrain(SlurmNodeName("n1"))
    assert replay.asked[-1].body == {"state": ["UNDRAIN"]}


def test_a_reason_is_read_with_its_time(replay: Replay, client: SlurmClient) -> None:
    replay.on("GET /nodes/", "nodes-drained")
    assert [(n.reason, n.reason_since) for n in client.nodes()] == [("", 0), ("maintenance", 1796009629)]


def test_somebody_elses_reason_is_not_touched(replay: Replay, client: SlurmClient) -> None:
    replay.on("GET /nodes/", "nodes-drained")
    with pytest.raises(Conflict, match="maintenance"):
        client.drain(SlurmNodeName("n2"), "GPU 0 does not answer")
    with pytest.raises(Conflict, match="maintenance"):
        client.undrain(SlurmNodeName("n2"))
    assert not any(what.startswith("POST") for what in replay.whats())


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("", 1, '{"dynamig":1}'),
        ('{"site": "x"}', 1, '{"dynamig":1,"site":"x"}'),
        ('{"site": "x", "dynamig": 2}', None, '{"site":"x"}'),
        ('{"dynamig": 2}', None, ""),
        ('{"site": "x"}', None, '{"site": "x"}'),
        ('{ "dynamig" : 1 }', 1, '{ "dynamig" : 1 }'),
        ("", None, ""),
    ],
)
def test_other_keys_of_extra_are_kept_and_what_is_so_already_too(before: str, value: Any, after: str) -> None:
    assert merged_extra(before, "dynamig", value, "n1") == after


@pytest.mark.parametrize("text", ["rack 7", "[1]", '"x"', "7"])
def test_somebodys_text_in_extra_is_not_overwritten(text: str) -> None:
    with pytest.raises(Refused, match="EXTRA_NOT_JSON"):
        merged_extra(text, "dynamig", 1, "n1")


def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = connect(f"http://127.0.0.1:{unused.getsockname()[1]}", "dynamig", lambda: "t")
        with pytest.raises(Unavailable, match="slurmrestd up"):
            client.controller()
        assert isinstance(client.job(1), Unknown)


def test_a_unix_socket_is_a_place_too(tmp_path: Path) -> None:
    client = connect(f"unix:{tmp_path}/none.sock", "dynamig", lambda: "t")
    with pytest.raises(Unavailable, match="slurmrestd up"):
        client.controller()


def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    read = token_file(path)
    with pytest.raises(Refused, match="NO_SLURM_TOKEN"):
        read()
    path.write_text("SLURM_JWT=one\n")
    assert read() == "one"
    path.write_text("two\n")
    assert read() == "two"
