"""A reader for the protobuf wire format, as much of it as a checked CEL expression uses.

The messages `cel.expr.CheckedExpr` have no published Python package of their own, and a dozen fields are read here.
Source: protobuf's encoding guide; cel-spec `proto/cel/expr/{checked,syntax}.proto`.
"""

from __future__ import annotations

import struct

Field = int | bytes


class Message:
    """The fields of one message by number, each with every value in the order of the wire."""

    __slots__ = ("_fields",)

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[Field]] = {}
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            value, at = _value(data, at, key & 7)
            self._fields.setdefault(key >> 3, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def raw(self, number: int) -> bytes:
        """The bytes of a length-delimited or fixed field; empty if it is not there."""
        found = self._fields.get(number, [b""])[-1]
        if isinstance(found, int):
            raise ValueError(f"field {number} is a number")
        return found

    def text(self, number: int) -> str:
        return self.raw(number).decode()

    def message(self, number: int) -> Message:
        return Message(self.raw(number))

    def messages(self, number: int) -> list[Message]:
        return [Message(one) for one in self._fields.get(number, []) if isinstance(one, bytes)]

    def unsigned(self, number: int) -> int:
        """0 if it is not there, as proto3 leaves zeros out."""
        found = self._fields.get(number, [0])[-1]
        if isinstance(found, bytes):
            raise ValueError(f"field {number} is not a number")
        return found

    def signed(self, number: int) -> int:
        value = self.unsigned(number)
        return value - (1 << 64) if value >= 1 << 63 else value

    def double(self, number: int) -> float:
        value: float = struct.unpack("<d", self.raw(number))[0]
        return value

    def packed(self, number: int) -> list[int]:
        """A repeated number, packed or not."""
        numbers: list[int] = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                numbers.append(value)
                continue
            at = 0
            while at < len(value):
                one, at = _varint(value, at)
                numbers.append(one)
        return numbers


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _value(data: bytes, at: int, wire_type: int) -> tuple[Field, int]:
    match wire_type:
        case 0:
            return _varint(data, at)
        case 1:
            return data[at : at + 8], at + 8
        case 2:
            length, at = _varint(data, at)
            return data[at : at + length], at + length
        case 5:
            return data[at : at + 4], at + 4
        case other:
            raise ValueError(f"wire type {other}")
