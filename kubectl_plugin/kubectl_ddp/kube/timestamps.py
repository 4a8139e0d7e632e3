"""Conversion of RFC 3339 timestamps. The API server writes them in UTC, and a kubelet in the zone of its node."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_DIGITS: Final = 9


def nanoseconds(moment: str | None) -> int | None:
    """Return an RFC 3339 time as nanoseconds of Unix time; None if it is missing or malformed.

    >>> nanoseconds("1969-12-31T19:01:00.000000001-05:00")
    60000000001
    """
    found = _RFC3339.fullmatch(moment or "")
    if found is None:
        return None
    second, fraction, zone = found.groups(default="")
    try:
        return int(datetime.fromisoformat(f"{second}{zone}").timestamp()) * 10**9 + int(f"{fraction:0<9}"[:9])
    except ValueError:
        return None


def epoch(moment: str | None) -> float | None:
    """Return an RFC 3339 time as Unix time in seconds; None if it is missing or malformed.

    >>> epoch("1970-01-01T01:01:00.25+01:00")
    60.25
    """
    found = nanoseconds(moment)
    return None if found is None else found / 1e9


def timestamp(moment: float | None) -> str | None:
    """Return a Unix time as a Kubernetes timestamp; None if it is unknown.

    >>> timestamp(60.0)
    '1970-01-01T00:01:00Z'
    """
    return None if moment is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def log_timestamp(moment: int) -> str:
    """Return nanoseconds of Unix time as RFC 3339 in UTC, with nine digits, so that texts sort by time.

    >>> log_timestamp(1_700_000_000_000_000_001)
    '2023-11-14T22:13:20.000000001Z'
    """
    seconds, rest = divmod(moment, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def as_log_timestamp(moment: str) -> str | None:
    """Return an RFC 3339 time of any zone in the form of :func:`log_timestamp`; None if it is malformed.

    >>> as_log_timestamp("2026-01-02T03:04:05.1-05:00")
    '2026-01-02T08:04:05.100000000Z'
    """
    found = _RFC3339.fullmatch(moment)
    if found is not None and found[3] == "Z" and len(found[2] or "") == _DIGITS:  # as almost all are
        return moment
    time_ns = nanoseconds(moment)
    return None if time_ns is None else log_timestamp(time_ns)
