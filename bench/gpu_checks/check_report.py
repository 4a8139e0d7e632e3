"""Figures and bars of a check, and parts that this hardware does not support; saved after every addition."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.harness import Report


class Status(StrEnum):
    """End of a check."""

    PASSED = "passed"
    PARTIAL = "partial"
    """All that ran passed, and a part was left out. It proves no promise."""
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    NOT_SUPPORTED = "not supported"
    STUCK = "stuck in the driver"
    """Its processes cannot be killed."""
    NOT_RUN = "not run"


class NotSupported(Exception):
    """This hardware or software cannot run the check; the message is the reason."""


@dataclass(slots=True)
class CheckReport(Report):
    """A report that is written to a file whenever it changes, so that a killed check keeps what it found."""

    file: Path | None = None
    unsupported: dict[str, str] = field(default_factory=dict)
    """Part of the check → why it was left out."""

    def add(self, name: str, value: float) -> None:
        """Add one figure; its name ends in its unit, see :data:`bench.harness.UNITS`."""
        self.figure(name, value)
        self.save()

    def mark_unsupported(self, part: str, reason: str) -> None:
        """Report a part that cannot be run here."""
        self.unsupported[part] = reason
        self.save()

    def at_most(self, what: str, figure: float, bar: float) -> None:
        """Require a figure of at most ``bar``, and save."""
        Report.at_most(self, what, figure, bar)
        self.save()

    def at_least(self, what: str, figure: float, bar: float) -> None:
        """Require a figure of at least ``bar``, and save."""
        Report.at_least(self, what, figure, bar)
        self.save()

    def require(self, what: str, holds: bool) -> None:
        """Require something that is true or false: a figure of 1 or 0, at least 1."""
        self.at_least(what, float(holds), 1.0)

    def save(self) -> None:
        """Replace the file whole."""
        if self.file is not None:
            draft = self.file.with_suffix(".new")
            draft.write_text(json.dumps(self.as_dict(), allow_nan=False), encoding="utf-8")
            draft.rename(self.file)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite becomes None."""
        return {
            "figures": {name: to_json_number(value) for name, value in self.figures.items()},
            "bars": [dataclasses.asdict(bar) | {"figure": to_json_number(bar.figure)} for bar in self.bars],
            "unsupported": dict(self.unsupported),
            "details": dict(self.details),
        }


def to_json_number(value: float) -> float | None:
    """Return the value, or None where JSON has no such number."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Device, sizes, folder, deadline and report of one check."""

    device: str
    """``cuda``, or ``cpu`` for a rehearsal of its logic."""
    is_small: bool
    """Sizes that a test can afford."""
    directory: Path
    """An empty folder that is removed afterwards."""
    deadline: float
    """Time by ``time.monotonic`` shortly after which the check is killed."""
    findings: CheckReport

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def is_gpu(self) -> bool:
        """True if the check runs on a GPU."""
        return self.device == "cuda"

    @property
    def timeout_factor(self) -> float:
        """Factor for the longest waits: a rehearsal measures no time, and its machine may be busy."""
        return 1.0 if self.is_gpu else 10.0

    def bounded(self, seconds: float) -> float:
        """Return the limit of a wait of so many seconds on a GPU: never beyond the deadline."""
        return max(0.0, min(self.timeout_factor * seconds, self.seconds_left))

    def size(self, full: int, small: int) -> int:
        """One of two sizes."""
        return small if self.is_small else full

    def folder(self, name: str) -> Path:
        """Return a new folder for a part of the check."""
        path = self.directory / name
        path.mkdir(parents=True)
        return path
