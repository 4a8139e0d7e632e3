"""Equal lines of many ranks are folded into one line in the place of the first, and no line is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.errors import NotFound
from kubectl_ddp.observe.log_stream import Line, fold, iter_with_timeout


def line(rank: int | None, text: str, seconds: float = 0.0, pod: str = "p") -> Line:
    prefix = f"[rank{rank}] " if rank is not None else ""
    return Line(f"2026-01-02T03:04:{seconds:012.9f}Z", pod, rank, f"{prefix}{text}")


def texts(lines: list[Line | None]) -> list[str]:
    return [one.text for one in fold(lines)]


def test_equal_lines_of_several_ranks_become_one_in_the_place_of_the_first() -> None:
    text = [line(0, "a"), line(2, "a"), line(0, "b"), line(1, "a"), line(1, "b"), line(5, "a"), line(0, "c")]
    assert texts([*text]) == ["[rank0-2,5 x4] a", "[rank0-1 x2] b", "[rank0] c"]


def test_what_one_rank_says_twice_is_said_twice() -> None:
    found = texts([line(0, "a"), line(0, "x"), line(0, "a"), line(1, "a")])
    assert found == ["[rank0] a", "[rank0] x", "[rank0-1 x2] a"]


def test_lines_far_apart_are_not_one() -> None:
    assert texts([line(0, "a", 1.0), line(1, "a", 1.9), line(2, "a", 2.1)]) == ["[rank0-1 x2] a", "[rank2] a"]


def test_launchers_are_told_by_their_number() -> None:
    text = [line(None, "generation 1", pod="p0"), line(None, "generation 1", pod="p1"), line(0, "generation 1")]
    assert texts([*text]) == ["[2 pods] generation 1", "[rank0] generation 1"]


def test_a_pause_lets_go_what_waits() -> None:
    out = fold(iter([line(0, "a"), None, line(1, "a")]))
    assert [one.text for one in out] == ["[rank0] a", "[rank1] a"]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 20))))
def test_no_line_is_lost_and_each_rank_keeps_its_order(sentence: list[tuple[int, str, int]]) -> None:
    lines = [line(rank, text, at / 5) for rank, text, at in sorted(sentence, key=lambda one: one[2])]
    out = [one for found in fold(lines) for one in found.lines]
    assert sorted(out, key=repr) == sorted(lines, key=repr)
    for rank in range(4):
        assert [one.time for one in out if one.rank == rank] == [one.time for one in lines if one.rank == rank]


def test_pauses_are_told_between_lines_as_they_come() -> None:
    more = threading.Event()

    def coming() -> Iterator[Line]:
        yield line(0, "a")
        more.wait()
        yield line(0, "b")

    out = iter_with_timeout(coming(), seconds=0.01)
    assert next(out) == line(0, "a")
    assert next(out) is None
    more.set()
    assert [one for one in out if one is not None] == [line(0, "b")]


def test_what_reading_raises_is_raised() -> None:
    def broken() -> Iterator[Line]:
        yield line(0, "a")
        raise NotFound("It is gone.")

    out = iter_with_timeout(broken())
    next(out)
    with pytest.raises(NotFound):
        next(out)
