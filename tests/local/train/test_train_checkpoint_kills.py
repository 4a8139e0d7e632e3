"""Killed in the midst of saving, again and again: what was reported as durable is there, and whole."""

from __future__ import annotations

import random
from pathlib import Path

from bench.drivers.kill_during_save import kill_at_random_times


def test_kills_during_saves_leave_nothing_torn_and_nothing_older_than_was_reported(tmp_path: Path) -> None:
    kills = kill_at_random_times(tmp_path, count=10, size_bytes=20 << 20, chance=random.Random(7))
    assert (kills.count, kills.unloadable, kills.older) == (10, 0, 0)
    assert kills.mid_save > 0
