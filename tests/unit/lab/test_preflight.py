"""What a machine lacks is said at once, and only what is needed is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.preflight import DEBIAN_PROGRAMS, PROGRAMS, Facts, Needs, lacks

EVERYTHING = Needs(kubernetes=True, debian=True, pause=True)
NOTHING = Needs(kubernetes=False, debian=False, pause=False)
FINE = Facts(
    root=True,
    programs=frozenset({*PROGRAMS, *DEBIAN_PROGRAMS, "gcc"}),
    go=(1, 26),
    namespaces=None,
    overlay=True,
    cgroups=True,
    cache_gib=20,
    lab_gib=5,
)
BARE = Facts(
    root=False,
    programs=frozenset(),
    go=None,
    namespaces="Operation not permitted",
    overlay=False,
    cgroups=False,
    cache_gib=0,
    lab_gib=0,
)


def test_a_fit_machine_lacks_nothing() -> None:
    assert lacks(FINE, EVERYTHING) == []


def test_a_bare_machine_is_told_everything_with_a_way_to_get_it() -> None:
    found = lacks(BARE, EVERYTHING)
    text = "\n".join(map(str, found))
    for part in ("not root", "overlayfs", "cgroup", "no openssl", "no gcc", "no wget", "no go", "for the cache", "lab"):
        assert part in text
    assert all(lack.how_to_get for lack in found)


def test_what_is_cached_needs_no_tools_to_build_it() -> None:
    facts = replace(FINE, go=None, programs=frozenset(PROGRAMS), cache_gib=0.1)
    assert lacks(facts, NOTHING) == []
    assert {lack.what for lack in lacks(facts, replace(NOTHING, pause=True))} == {"no gcc"}


@pytest.mark.parametrize(("version", "fine"), [((1, 25), False), ((1, 26), True), ((2, 0), True), ((1, 9), False)])
def test_go_is_compared_as_numbers(version: tuple[int, int], fine: bool) -> None:
    assert (lacks(replace(FINE, go=version), EVERYTHING) == []) is fine


def test_namespaces_are_only_blamed_on_a_root_that_cannot_make_them() -> None:
    assert "Operation not permitted" in str(lacks(replace(FINE, namespaces="Operation not permitted"), NOTHING)[0])
    assert [lack.what for lack in lacks(replace(FINE, root=False, namespaces="EPERM"), NOTHING)] == ["not root"]
