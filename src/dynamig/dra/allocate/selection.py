"""Which devices a selector takes, evaluated once per expression and content.

Thousands of devices differ in nothing that a usual selector reads (`cel.reads`), so its answer is kept by what it
reads, across nodes and pods. For a node the devices are sorted into classes of equal content first, and one of each
class is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from dynamig.dra.cel import CelError, Read, Selector, compile_selector
from dynamig.dra.read import PublishedDevice
from dynamig.errors import Refused

KEPT_EXPRESSIONS = 1024
KEPT_ANSWERS = 1 << 16
"""Per expression, about 10 MB at worst."""

Content = tuple[object, ...]
Answer = bool | str
"""Whether the device is taken, or the error in words."""


class Selected(NamedTuple):
    """Devices that match, and devices on which evaluation fails."""

    matching: int
    failing: int


class Catalog:
    """The devices of one node in order, and the selections made from them so far."""

    def __init__(self, devices: Sequence[tuple[str, PublishedDevice]]) -> None:
        self._devices = devices
        self.all = (1 << len(devices)) - 1
        drivers: dict[str, int] = {}
        for i, (driver, _) in enumerate(devices):
            drivers[driver] = drivers.get(driver, 0) | 1 << i
        self._drivers = tuple(drivers.items())
        self._values: dict[Read, dict[object, int]] = {}
        self._selected: dict[tuple[str, ...], Selected] = {}

    def select(self, expressions: tuple[str, ...]) -> Selected:
        """Devices that all expressions take, the first that says no or fails deciding."""
        known = self._selected.get(expressions)
        if known is None:
            if len(self._selected) >= KEPT_EXPRESSIONS:
                self._selected.clear()
            known = self._selected[expressions] = self._chain(expressions)
        return known

    def why(self, expressions: tuple[str, ...], device: int) -> str:
        """The error of the first expression that fails on the device."""
        driver, published = self._devices[device]
        answers = (_compiled(expression).ask(driver, published) for expression in expressions)
        return next((answer for answer in answers if isinstance(answer, str)), "")

    def _chain(self, expressions: tuple[str, ...]) -> Selected:
        matching, failing = self.all, 0
        for expression in expressions:
            one = self._one(_compiled(expression))
            failing |= matching & one.failing
            matching &= one.matching
        return Selected(matching, failing)

    def _one(self, expression: Expression) -> Selected:
        matching = failing = 0
        for devices in self._classes(expression.reads):
            driver, device = self._devices[(devices & -devices).bit_length() - 1]
            match expression.ask(driver, device):
                case True:
                    matching |= devices
                case str():
                    failing |= devices
        return Selected(matching, failing)

    def _classes(self, reads: frozenset[Read] | None) -> list[int]:
        """Devices that the expression cannot tell apart; each for itself if that is not known."""
        if reads is None:
            return [1 << i for i in range(len(self._devices))]
        classes = [devices for _, devices in self._drivers]
        for read in reads:
            values = self.values(read).values()
            classes = [common for one in classes for devices in values if (common := one & devices)]
        return classes

    def values(self, read: Read) -> dict[object, int]:
        """Value of the attribute or capacity -> the devices that have it; None -> those without."""
        if (known := self._values.get(read)) is None:
            known = {}
            for i, (driver, device) in enumerate(self._devices):
                value = content(read, driver, device)
                known[value] = known.get(value, 0) | 1 << i
            self._values[read] = known
        return known


def content(read: Read, driver: str, device: PublishedDevice) -> object:
    """What the device has there, with its type, since 1, True and 1.0 are one key to Python; None for nothing."""
    values = device.attributes if read.kind == "attributes" else device.capacity
    value = values.get(read.name if read.domain == driver else f"{read.domain}/{read.name}")
    if isinstance(value, tuple):
        return tuple((type(one), one) for one in value)
    return None if value is None else (type(value), value)


class Expression:
    """A compiled selector with its answers. One that does not compile fails on every device."""

    def __init__(self, text: str) -> None:
        self._selector: Selector | None = None
        self._broken = ""
        try:
            self._selector = compile_selector(text)
        except Refused as error:
            self._broken = error.what
        self.reads = self._selector.reads if self._selector else frozenset()
        self._answers: dict[Content, Answer] = {}

    def ask(self, driver: str, device: PublishedDevice) -> Answer:
        if self.reads is None:
            return self._evaluate(driver, device)
        key = (driver, *(content(read, driver, device) for read in self.reads))
        if (known := self._answers.get(key)) is None:
            if len(self._answers) >= KEPT_ANSWERS:
                self._answers.clear()
            known = self._answers[key] = self._evaluate(driver, device)
        return known

    def _evaluate(self, driver: str, device: PublishedDevice) -> Answer:
        if self._selector is None:
            return self._broken
        try:
            return self._selector.matches(driver, device)
        except CelError as error:
            return f"selector `{self._selector.expression}` fails: {error}"


def reads_of(expression: str) -> frozenset[Read]:
    """The attributes and capacities that the expression reads, as far as that can be told from its text."""
    return _compiled(expression).reads or frozenset()


@lru_cache(maxsize=KEPT_EXPRESSIONS)
def _compiled(text: str) -> Expression:
    return Expression(text)
