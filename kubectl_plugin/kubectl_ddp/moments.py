"""Kubernetes' times as numbers."""

from __future__ import annotations

import calendar
import time


def epoch(moment: str | None) -> float | None:
    """Unix time of a Kubernetes time.

    >>> epoch("1970-01-01T00:01:00Z")
    60.0
    """
    if not moment:
        return None
    try:
        return float(calendar.timegm(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None
