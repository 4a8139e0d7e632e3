"""Readings become growth on one axis, whatever they were taken at, and nothing is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_report.series import Series, Timeline, build_timeline, growth


def counted(*readings: tuple[float, float | None]) -> Series:
    return Series("ddp_x_total", [moment for moment, _ in readings], [value for _, value in readings])


TEN = Timeline(0.0, 1.0, 10)


def test_what_grew_between_two_readings_is_spread_evenly_over_the_time_between() -> None:
    grown = growth(counted((0, 0), (4, 8), (10, 8)), TEN)
    assert grown.amounts == (2, 2, 2, 2, 0, 0, 0, 0, 0, 0)
    assert grown.covered == (1.0,) * 10


def test_where_nothing_was_told_nothing_is_known_and_the_next_reading_makes_up_for_it() -> None:
    assert growth(counted((0, 0), (2, None), (4, 8)), TEN).amounts[:4] == (2, 2, 2, 2)
    assert growth(counted((3, 1), (5, 3)), TEN).per_second(1.0) == (*[None] * 3, 1, 1, *[None] * 5)


def test_a_counter_that_falls_was_begun_anew_and_one_that_appears_began_at_zero() -> None:
    assert sum(growth(counted((0, 5), (1, 6), (2, 2), (3, 4)), TEN).amounts) == 1 + 2 + 2
    assert growth(counted((0, None), (1, None), (2, 6), (3, 7)), TEN).amounts[:3] == (0, 6, 1)
    in_part = replace(counted((0, None), (1, None), (2, 6), (3, 7)), is_complete=False)
    assert growth(in_part, TEN).amounts[:3] == (0, 0, 1)


@given(st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 1e6)), min_size=2, max_size=40), st.integers(1, 130))
def test_nothing_is_lost_and_nothing_is_made_up(walk: list[tuple[float, float]], parts: int) -> None:
    now, value, readings = 0.0, 0.0, list[tuple[float, float | None]]()
    for seconds, more in walk:
        now, value = now + seconds, value + more
        readings.append((now, value))
    start, end = readings[0][0], readings[-1][0]
    grown = growth(counted(*readings), Timeline(start, (end - start) / parts, parts))
    assert sum(grown.amounts) == pytest.approx(value - (readings[0][1] or 0.0), rel=1e-6, abs=1e-6)
    assert sum(grown.covered) == pytest.approx(end - start)


def test_the_axis_has_no_part_that_is_shorter_than_the_time_between_two_readings() -> None:
    slow, quick = counted(*((30.0 * at, 1.0) for at in range(11))), counted(*((at + 0.5, 1.0) for at in range(300)))
    axis = build_timeline([slow, quick])
    assert axis is not None
    assert (axis.start, axis.end, axis.count) == (0.0, 300.0, 10)
    assert build_timeline([counted(*((float(at), 1.0) for at in range(1000)))]) == Timeline(0.0, 999 / 120, 120)


@pytest.mark.parametrize("series", [[], [counted((5, 1))], [counted((5, None), (6, 2))]])
def test_less_than_two_readings_span_nothing(series: list[Series]) -> None:
    assert build_timeline(series) is None
