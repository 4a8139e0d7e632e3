"""Amounts are read as people write them, and written back as what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.values.quantity import BadValue, Cpu, Memory, NodeRange, parse_seconds


@pytest.mark.parametrize(
    ("text", "size_bytes", "written"),
    [
        *(("1024Mi", 2**30, "1Gi"), ("1.5Gi", 3 * 2**29, "1536Mi"), ("2G", 2 * 10**9, "1953125Ki")),
        *(("3k", 3000, "3k"), ("1.001k", 1001, "1.001k")),
    ],
)
def test_memory_is_read_in_every_unit_and_written_in_the_shortest(text: str, size_bytes: int, written: str) -> None:
    assert Memory.parse(text) == Memory(size_bytes)
    assert str(Memory(size_bytes)) == written


@pytest.mark.parametrize(("text", "millis"), [("4", 4000), ("1.5", 1500), ("500m", 500), ("0.001", 1)])
def test_cores_are_read_whole_in_parts_and_in_thousandths(text: str, millis: int) -> None:
    assert Cpu.parse(text) == Cpu(millis)


@pytest.mark.parametrize(
    ("text", "nodes"), [("4", NodeRange(4, 4)), ("2:8", NodeRange(2, 8)), ("3:3", NodeRange(3, 3))]
)
def test_nodes_are_read_as_torchrun_writes_them(text: str, nodes: NodeRange) -> None:
    assert NodeRange.parse(text) == nodes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("1h", 3600), ("7d", 604800), ("0", 0)]
)
def test_durations_have_units(text: str, seconds: int) -> None:
    assert parse_seconds(text) == seconds


NO_MEMORY = ["", "16", "1.5", "-1Gi", "0", "0Gi", "4gi", "4GB", "1e3", "lots", " 4Gi", "9" * 16 + "Ei", "16Ei", "²Gi"]


@pytest.mark.parametrize(("parse", "text"), [
    *((Memory.parse, text) for text in NO_MEMORY),
    *((Cpu.parse, text) for text in ("", "0", "-1", "0.0001", "1.5m", "many", "1e3")),
    *((NodeRange.parse, text) for text in ("", "0", "0:2", "1:", ":2", "a", "1:2:3", "-1", "1-2", "999999")),
    *((parse_seconds, text) for text in ("", "-1s", "1.5h", "soon", "1w", "99999999d")),
])  # fmt: skip
def test_what_is_no_amount_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(BadValue):
        parse(text)


@given(st.integers(1, 2**62))
def test_memory_survives_being_written_and_read(size_bytes: int) -> None:
    assert Memory.parse(str(Memory(size_bytes))) == Memory(size_bytes)


@given(st.integers(1, 10**9))
def test_cores_survive_being_written_and_read(millis: int) -> None:
    assert Cpu.parse(str(Cpu(millis))) == Cpu(millis)
