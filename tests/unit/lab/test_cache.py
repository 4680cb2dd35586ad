"""The cache: complete or not there, made once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dynamig.errors import Unavailable
from lab.cache import cache_root, cached, digest, locked_or_refused
from lab.execute import Cancel, Cancelled


def write(folder: Path) -> None:
    (folder / "file").write_text("done")


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    target = tmp_path / "thing" / "key"
    cached(target, write, Cancel())

    def never(folder: Path) -> None:
        raise AssertionError("built twice")

    assert (cached(target, never, Cancel()) / "file").read_text() == "done"


def test_an_interrupted_build_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    target = tmp_path / "thing" / "key"

    def half(folder: Path) -> None:
        (folder / "rubbish").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(target, half, Cancel())
    assert not target.exists()
    cached(target, write, Cancel())
    assert [path.name for path in target.iterdir()] == ["file"]


def test_two_labs_make_it_once_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    target = tmp_path / "thing" / "key"
    building, finish, told = threading.Event(), threading.Event(), threading.Event()
    builds: list[Path] = []

    def slow(folder: Path) -> None:
        builds.append(folder)
        building.set()
        assert finish.wait(10)

    first = threading.Thread(target=cached, args=(target, slow, Cancel()))
    first.start()
    assert building.wait(10)
    second = threading.Thread(target=cached, args=(target, slow, Cancel(), told.set))
    second.start()
    assert told.wait(10)
    finish.set()
    first.join(10)
    second.join(10)
    assert len(builds) == 1


def test_waiting_for_another_lab_ends_with_ours(tmp_path: Path) -> None:
    target, cancel = tmp_path / "key", Cancel()
    with locked_or_refused(tmp_path / "key.lock", "somebody"), pytest.raises(Cancelled):
        cached(target, write, cancel, on_wait=cancel.set)


def test_a_lock_that_is_held_is_refused_with_the_reason(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "lab"
    with (
        locked_or_refused(lock, "first"),
        pytest.raises(Unavailable, match="who has it"),
        locked_or_refused(lock, "who has it"),
    ):
        pass
    with locked_or_refused(lock, "free again"):
        pass


def test_a_digest_knows_where_a_part_ends() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", b"b") == digest(b"a", "b")


def test_the_cache_is_where_the_environment_says() -> None:
    assert cache_root({"DYNAMIG_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/dynamig")
    assert cache_root({}) == Path.home() / ".cache/dynamig"
