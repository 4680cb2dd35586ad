"""Selectors by themselves. That they answer as Kubernetes does is shown in tests/integration/oracle."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest

from dynamig.dra import PublishedDevice, Version
from dynamig.dra.cel import CelError, Read, compile_selector
from dynamig.errors import Refused

DRIVER = "gpu.nvidia.com"
A = f"device.attributes['{DRIVER}']"
C = f"device.capacity['{DRIVER}']"
DEVICE = PublishedDevice(
    "gpu-0-mig-1g10gb-19-0",
    {
        "type": "mig",
        "profile": "1g.10gb",
        "index": 3,
        "flag": True,
        "driverVersion": Version("580.126.20"),
        "tags": ("a", "b"),
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
    },
    {"memory": Fraction(9984 << 20), "multiprocessors": Fraction(16)},
    {},
    (),
)


def matches(expression: str, device: PublishedDevice = DEVICE) -> bool:
    return compile_selector(expression).matches(DRIVER, device)


@pytest.mark.parametrize(
    "expression",
    [
        f"device.driver == '{DRIVER}' && {A}.type == 'mig'",
        f"{C}.memory.compareTo(quantity('9984Mi')) == 0",
        f"{A}.driverVersion.isGreaterThan(semver('570.0.0'))",
        "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'",
        "!has(device.attributes['nowhere'].x)",
        f"{A}.?nosuch.orValue('none') == 'none'",
        f"cel.bind(gpu, {A}, gpu.type == 'mig' && gpu.index == 3)",
        f"{A}.tags.exists(tag, tag == 'b')",
        f"{A}.profile.matches('^[0-9]g')",
        f"{A}.nosuch == 'x' || true",
        "1 < 1.5",
    ],
)
def test_true_of_the_device(expression: str) -> None:
    assert matches(expression) is True
    assert matches(f"!({expression})") is False


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f"{A}.nosuch == 'x'", "no such key: nosuch"),
        (f"{A}.driverVersion == '580.126.20'", "no such overload"),
        (f"{A}.index", "the result is a int, not a bool"),
        (f"{A}.tags[9] == 'a'", "index out of bounds"),
        (f"{A}.index / 0 == 1", "division by zero"),
        (f"{A}.type.matches({A}.profile + '(')", "invalid regular expression"),
    ],
)
def test_errors_on_a_device(expression: str, message: str) -> None:
    with pytest.raises(CelError, match=message):
        matches(expression)


@pytest.mark.parametrize(
    ("expression", "code", "named"),
    [
        ("device.nofield == 'x'", "BAD_SELECTOR", "1:7: undeclared reference"),
        ("device.driver == 1", "BAD_SELECTOR", "no matching overload"),
        ("device.driver", "BAD_SELECTOR", "its result is string"),
        ("1 +", "BAD_SELECTOR", "Syntax error"),
        ("'a'.matches('(')", "BAD_SELECTOR", "missing )"),
        ("'" + "a" * 11_000 + "' == ''", "BAD_SELECTOR", "10240"),
        ("ip('::1').family() == 6", "UNSUPPORTED_SELECTOR", "the function ip"),
        ("!(" * 40 + "true" + ")" * 40, "UNSUPPORTED_SELECTOR", "more than 32 levels"),
        ("has(device.driver)", "UNSUPPORTED_SELECTOR", "has()"),
        ("cel.bind(device, 1, device == 1)", "UNSUPPORTED_SELECTOR", "a local variable named device"),
    ],
)
def test_what_is_refused(expression: str, code: str, named: str) -> None:
    with pytest.raises(Refused) as caught:
        compile_selector(expression)
    assert caught.value.code == code
    assert named in caught.value.what
    assert "\n" not in caught.value.what
    assert len(caught.value.what) < 500


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f"device.driver == '{DRIVER}'", set()),
        (f"{A}.type == 'mig' && has({A}['profile'])", {("attributes", "type"), ("attributes", "profile")}),
        (f"{A}.?type.orValue('') == '' || {A}[?'index'].hasValue()", {("attributes", "type"), ("attributes", "index")}),
        (f"{C}.memory.isLessThan(quantity('1'))", {("capacity", "memory")}),
        (f"cel.bind(a, {A}, a.type == 'mig')", None),
        ("device.attributes.size() == 1", None),
        (f"{A}[device.driver] == 'x'", None),
        ("device.attributes[device.driver].type == 'mig'", None),
        (f"[1].exists(i, {A}.index == i)", {("attributes", "index")}),
    ],
)
def test_what_an_expression_reads(expression: str, expected: set[tuple[str, str]] | None) -> None:
    found = compile_selector(expression.replace("has(" + A + "['profile'])", f"has({A}.profile)")).reads
    wanted = None if expected is None else {Read(kind, DRIVER, name) for kind, name in expected}  # type: ignore[arg-type]
    assert found == wanted


def test_work_is_bounded() -> None:
    thousand = "lists.range(1000)"
    with pytest.raises(CelError, match="steps"):
        matches(f"{thousand}.all(a, {thousand}.all(b, b >= 0))")
    with pytest.raises(CelError, match="result of replace is too large"):
        matches("cel.bind(s, 'xxxxxxxxxx', s.replace('', s.replace('', s.replace('', s)))) == ''")
    with pytest.raises(CelError, match="out of range"):
        matches("lists.range(1000000).size() == 1")
    grown = "'xxxxxxxx'"
    for _ in range(10):
        grown = f"cel.bind(s, {grown}, s + s)"
    with pytest.raises(CelError, match="too large"):
        matches(f"{grown} == ''")


def test_a_published_version_that_is_none_fails_there_only() -> None:
    odd = PublishedDevice("d", {"driverVersion": Version("5"), "type": "mig"}, {}, {}, ())
    with pytest.raises(CelError, match="not a semantic version"):
        matches("true", odd)


def test_one_selector_serves_many_threads() -> None:
    """Devices of different threads are never mixed up: every evaluation has its own frame."""
    selector = compile_selector(f"{A}.tags.exists(t, t == {A}.type) && {A}.type.matches('^' + {A}.type)")
    wrong: list[str] = []

    def ask(name: str) -> None:
        good = PublishedDevice("d", {"tags": ("x", name), "type": name}, {}, {}, ())
        bad = PublishedDevice("d", {"tags": ("x", name), "type": "other"}, {}, {}, ())
        for _ in range(300):
            if not selector.matches(DRIVER, good) or selector.matches(DRIVER, bad):
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(f"n{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
