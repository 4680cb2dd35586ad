"""String functions of cel-go's ext.Strings, version 2. Positions count characters (Unicode code points)."""

from __future__ import annotations

from dynamig.dra.cel.values import MAX_SIZE, CelError, Value, checked_size, is_list, no_such_overload

WHITESPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What Go's unicode.IsSpace takes; Python's `strip` would also take some control characters."""


def char_at(text: str, index: int) -> str:
    """The character, or nothing right after the last one."""
    if not 0 <= index <= len(text):
        raise CelError(f"index out of range: {index}")
    return text[index : index + 1]


def substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise CelError(f"index out of range: {start}, {end}")
    return text[start:end]


def index_of(text: str, part: Value, offset: int = 0) -> int:
    """Position of the first occurrence from `offset` on, -1 for none."""
    if type(part) is not str or type(offset) is not int:
        no_such_overload()
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    return min(offset, len(text)) if not part else text.find(part, offset)


def last_index_of(text: str, part: Value, offset: int | None = None) -> int:
    """Position of the last occurrence that begins at `offset` or before, -1 for none."""
    if type(part) is not str:
        no_such_overload()
    if offset is None:
        return text.rfind(part)
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    return -1 if offset >= len(text) else text.rfind(part, 0, offset + len(part))


def lower_ascii(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def upper_ascii(text: str) -> str:
    return "".join(c.upper() if c.isascii() else c for c in text)


def trim(text: str) -> str:
    return text.strip(WHITESPACE)


def replace(text: str, old: str, new: str, limit: int = -1) -> str:
    """At most `limit` replacements, all if it is negative. Size is checked before the work is done."""
    count = len(text) + 1 if not old else text.count(old)
    count = count if limit < 0 else min(count, limit)
    if len(text) + count * (len(new) - len(old)) > MAX_SIZE:
        raise CelError("result of replace is too large")
    return text.replace(old, new, limit)


def split(text: str, separator: str, limit: int = -1) -> list[str]:
    """At most `limit` parts, all if it is negative; an empty separator splits into characters."""
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def join(parts: Value, separator: Value = "") -> str:
    if not is_list(parts) or type(separator) is not str or any(type(part) is not str for part in parts):
        no_such_overload()
    joined: str = checked_size(separator.join(parts))
    return joined
