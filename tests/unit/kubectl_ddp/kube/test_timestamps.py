"""Times of any zone are read to the nanosecond, and times of logs sort as texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.kube.objects import as_log_timestamp, epoch, log_timestamp, nanoseconds, timestamp

TIMES = st.integers(0, 4 * 10**18)
ZONES = st.integers(-14 * 60, 14 * 60)


def written(time_ns: int, zone_minutes: int) -> str:
    """Return a time as a kubelet writes it that is so many minutes east of UTC."""
    second = datetime.fromtimestamp(time_ns // 10**9, UTC).astimezone(timezone(timedelta(minutes=zone_minutes)))
    return second.strftime(f"%Y-%m-%dT%H:%M:%S.{time_ns % 10**9:09d}") + second.isoformat()[19:]


@given(TIMES, ZONES, TIMES, ZONES)
def test_a_time_of_any_zone_keeps_nanoseconds_and_its_order(one: int, zone: int, other: int, its_zone: int) -> None:
    assert nanoseconds(written(one, zone)) == one
    texts = as_log_timestamp(written(one, zone)), as_log_timestamp(written(other, its_zone))
    assert texts == (log_timestamp(one), log_timestamp(other))
    assert (texts[0] < texts[1]) == (one < other)


@pytest.mark.parametrize("fraction", ["", ".1", ".10", ".100000000", ".1000000009"])
def test_a_fraction_has_any_number_of_digits(fraction: str) -> None:
    text = as_log_timestamp(f"2026-01-02T03:04:05{fraction}Z")
    assert text == f"2026-01-02T03:04:05.{1 if fraction else 0}00000000Z"


@pytest.mark.parametrize(
    "moment",
    [None, "", "unable", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05+24:00"],
)
def test_what_is_no_time_is_none(moment: str | None) -> None:
    assert nanoseconds(moment) is None
    assert epoch(moment) is None
    assert timestamp(epoch(moment)) is None
