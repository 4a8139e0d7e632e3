"""Strict JSON: the declared fields with the declared types, or an error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pytest

from ddp_trainer.common.strict_json import DecodeError, loads, parse


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: float


@dataclass(frozen=True)
class Outer:
    name: str
    parts: tuple[Inner, ...] = ()
    counts: dict[str, int] | None = None
    colour: Colour = Colour.RED
    yes: bool = False


def test_declared_fields_of_declared_types_come_back() -> None:
    line = b'{"name": "a", "parts": [{"number": 1}, {"number": 0.5}], "counts": {"b": 2}, "colour": "red", "yes": true}'
    assert parse(Outer, loads(line)) == Outer("a", (Inner(1.0), Inner(0.5)), {"b": 2}, Colour.RED, yes=True)
    assert parse(Outer, loads(b'{"name": "a", "counts": null}')) == Outer("a")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[" * 100_000,
        b'{"name": 1}',
        b'{"name": "a", "more": 1}',
        b'{"name": "a", "yes": 1}',
        b'{"name": "a", "counts": {"b": true}}',
        b'{"name": "a", "colour": "blue"}',
        b'{"name": "a", "parts": {"number": 1}}',
        b'{"name": "a", "parts": [{"number": true}]}',
        b'{"name": "a", "parts": [{"number": NaN}]}',
        b'{"name": "a", "parts": [{"number": 1' + b"0" * 5000 + b"}]}",
    ],
)
def test_anything_else_is_malformed(line: bytes) -> None:
    with pytest.raises(DecodeError):
        parse(Outer, loads(line))
