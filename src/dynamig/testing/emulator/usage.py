"""What devices of an emulated node use, as a text that people and scripts write.

One record a line, `#` begins a comment:

    SECONDS DEVICE KEY=LEVEL ...
    0       gpu0@4 used=9000 gpu=80 sm=75
    60      gpu0@4 gpu=0 sm=0

DEVICE is a GPU (`gpu0`) or the GPU instance that starts at a memory slice of it (`gpu0@4`), by place and not by id, so
that a text can be written before the instance exists. SECONDS count from when the text is fed; a level holds until the
device's next record names it again. Keys: `used` in MiB; `gpu`, `memory`, `encoder`, `decoder`, `sm`, `occupancy`,
`tensor`, `dram` in percent; `celsius`; `milliwatt`.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dynamig.errors import Refused
from dynamig.testing.emulator import layout
from dynamig.testing.emulator.node import files_of, locked, read_node, replace

_N = r"[0-9]{1,15}"
_LINE = re.compile(rf"(?P<at>[0-9]{{1,30}}(\.{_N})?)\s+gpu(?P<gpu>{_N})(@(?P<start>{_N}))?(?P<levels>(\s+\w+={_N})+)")
_ABSOLUTE = ("used", "celsius", "milliwatt")
"""Keys that are not shares of 100."""

_USED, _MILLIWATT = map(layout.USAGE_KEYS.index, ("used", "milliwatt"))
_FARTHEST = 10**9


def parse_usage(lines: Iterable[str], gpus: Sequence[layout.Model]) -> list[layout.UsageRecord]:
    """Records with `at_us` from the beginning of the text, ordered by time; `gpus`: the model of each GPU.

    Raises: Refused BAD_USAGE, with the line's number, for what is not in the form above, a device that cannot exist,
    more memory than it can have, or more power than its model's limit.
    """
    records = [record for number, line in enumerate(lines, 1) for record in _records(line, number, gpus)]
    return sorted(records, key=lambda record: record.at_us)


def feed(directory: Path, records: Iterable[layout.UsageRecord]) -> None:
    """From now on the node's devices use what the records say; of what was fed before only the energy still counts."""
    fed = [layout.UsageRecord.from_buffer_copy(record) for record in records]
    with locked(directory / "state" / "lock"):
        head, before, now = read_node(directory).head, _fed_before(directory), time.time_ns() // 1000
        for record in fed:
            record.at_us += now
        spent = [_spent(before, gpu, head.loaded_us, now) for gpu in range(head.gpu_count)]
        replace(directory / "state" / "usage", b"".join(map(bytes, [*spent, *fed])))


def fed_records(directory: Path) -> int:
    """How many the last feed had, in force by now or not."""
    with files_of(directory):
        return sum(record.start != layout.ENERGY_BEFORE for record in _fed_before(directory))


def _fed_before(directory: Path) -> list[layout.UsageRecord]:
    path, size = directory / "state" / "usage", ctypes.sizeof(layout.UsageRecord)
    data = path.read_bytes() if path.exists() else b""
    return [layout.UsageRecord.from_buffer_copy(data, at) for at in range(0, len(data) - size + 1, size)]


def _spent(fed: Iterable[layout.UsageRecord], gpu: int, loaded: int, now: int) -> layout.UsageRecord:
    """What the GPU has consumed since the driver was loaded: as `energy_mj` in emulator/src/usage.c. Times in us."""
    energy, since, milliwatt = 0, loaded, layout.IDLE_MILLIWATT
    for record in (r for r in fed if r.gpu == gpu and r.at_us <= now):
        if record.start == layout.ENERGY_BEFORE and record.at_us >= since:
            energy, since = record.level[0] | record.level[1] << 32, record.at_us
        if record.start == layout.NO_ID and record.set & 1 << _MILLIWATT:
            energy += max(0, record.at_us - since) * milliwatt // 10**6
            since, milliwatt = max(since, record.at_us), record.level[_MILLIWATT]
    energy += max(0, now - since) * milliwatt // 10**6
    made = layout.UsageRecord(at_us=now, gpu=gpu, start=layout.ENERGY_BEFORE)
    made.level[0], made.level[1] = energy & layout.LARGEST, energy >> 32
    return made


def _records(line: str, number: int, gpus: Sequence[layout.Model]) -> Iterator[layout.UsageRecord]:
    text = line.split("#")[0].strip()
    if not text:
        return
    if not (match := _LINE.fullmatch(text)):
        raise _bad(number, f"{text!r} is not SECONDS DEVICE KEY=LEVEL ...", "such as: 0 gpu0@4 used=9000 gpu=80")
    if int(match["gpu"]) >= len(gpus):
        raise _bad(number, f"there is no gpu{match['gpu']}", f"gpu0 to gpu{len(gpus) - 1}")
    model = gpus[int(match["gpu"])]
    start = layout.NO_ID if match["start"] is None else _start(int(match["start"]), model, number)
    if float(match["at"]) > _FARTHEST:
        raise _bad(number, f"{match['at']} seconds are too far away", f"at most {_FARTHEST}")
    record = layout.UsageRecord(at_us=round(float(match["at"]) * 1e6), gpu=int(match["gpu"]), start=start)
    for pair in match["levels"].split():
        key, level = pair.split("=")
        if key in layout.USAGE_KEYS and record.set >> layout.USAGE_KEYS.index(key) & 1:
            raise _bad(number, f"{key} is there twice", "one level for each key")
        _set_level(record, key, int(level), number)
    most = _memory_mib(model, start)
    if record.level[_USED] > most:
        raise _bad(number, f"used={record.level[_USED]} is more than fits there", f"at most {most} MiB")
    if 0 < model.limit_milliwatt < record.level[_MILLIWATT]:
        limit = f"at most the {model.limit_milliwatt} of {model.key.decode()}"
        raise _bad(number, f"milliwatt={record.level[_MILLIWATT]} is above the power limit", limit)
    yield record


def _start(start: int, model: layout.Model, number: int) -> int:
    """The slice, if some GPU instance may start there."""
    starts = 0
    for profile in model.profiles[: model.profile_count]:
        starts |= profile.starts
    possible = [s for s in range(layout.MAX_SLICES) if starts >> s & 1]
    if start not in possible:
        raise _bad(number, f"no GPU instance starts at slice {start}", "one of " + ", ".join(map(str, possible)))
    return start


def _memory_mib(model: layout.Model, start: int) -> int:
    """Of the GPU, or of the largest GPU instance that may start there."""
    if start == layout.NO_ID:
        return int(model.memory_mib)
    return max(int(p.memory_mib) for p in model.profiles[: model.profile_count] if p.starts >> start & 1)


def _set_level(record: layout.UsageRecord, key: str, level: int, number: int) -> None:
    if key not in layout.USAGE_KEYS:
        raise _bad(number, f"no key {key!r}", "one of " + ", ".join(layout.USAGE_KEYS))
    most = layout.LARGEST if key in _ABSOLUTE else 100
    if level > most:
        unit = {"used": "MiB"}.get(key, key if key in _ABSOLUTE else "percent")
        raise _bad(number, f"{key}={level} is too much", f"at most {most} {unit}")
    index = layout.USAGE_KEYS.index(key)
    record.level[index] = level
    record.set |= 1 << index


def _bad(number: int, what: str, next_step: str) -> Refused:
    return Refused("BAD_USAGE", f"line {number}: {what}", next_step)
