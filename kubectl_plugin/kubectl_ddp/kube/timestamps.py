"""Conversion of Kubernetes timestamps."""

from __future__ import annotations

import time
from datetime import datetime


def epoch(moment: str | None) -> float | None:
    """Return a Kubernetes timestamp as Unix time; None if it is missing or malformed.

    >>> epoch("1970-01-01T00:01:00Z")
    60.0
    """
    if not moment:
        return None
    try:
        return datetime.fromisoformat(f"{moment[:19]}+00:00").timestamp()
    except ValueError:
        return None


def timestamp(moment: float | None) -> str | None:
    """Return a Unix time as a Kubernetes timestamp; None if it is unknown.

    >>> timestamp(60.0)
    '1970-01-01T00:01:00Z'
    """
    return None if moment is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
