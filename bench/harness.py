"""Shared parts of all measurements: options, the report of figures and limits, and interleaved rounds."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

UNITS: Final = (
    "seconds",
    "bytes",
    "ratio",
    "count",
    "steps",
    "samples",
    "bytes_per_second",
    "samples_per_second",
    "flops_per_second",
)
"""Allowed endings of a figure's name."""


class CannotMeasure(Exception):
    """A prerequisite of this measurement is missing; the message names it."""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _to_stdout(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a measurement from the command line."""

    quick: bool = False
    """Run fewer rounds, for a rough result."""
    seed: int = 0
    """Seed of ``random``. The same seed gives the same order of turns and the same schedules."""
    only: frozenset[str] = frozenset()
    """Selected parts of a measurement that has ``PARTS``; empty for all."""
    budget_seconds: float | None = None
    """Wall time of a measurement that can shorten itself."""
    out: Path | None = None
    """Folder for the files of a measurement that writes some."""
    progress: Callable[[str], None] = _to_stderr
    """Prints one line of progress."""
    emit: Callable[[Mapping[str, Any]], None] = _to_stdout
    """Prints one line of JSON before the last one, while the measurement runs."""
    random: random.Random = field(init=False)
    """The only random generator of the measurement."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "random", random.Random(self.seed))

    def parts(self, known: Sequence[str]) -> list[str]:
        """Return the selected parts of a measurement, in its own order.

        Raises:
            CannotMeasure: one that is wanted is not known.

        >>> Options(only=frozenset({"c", "a"})).parts(["a", "b", "c"]), Options().parts(["a", "b"])
        (['a', 'c'], ['a', 'b'])
        """
        if strange := sorted(self.only.difference(known)):
            raise CannotMeasure(f"There is no part {', '.join(strange)}; there are {', '.join(known) or 'none'}.")
        return [name for name in known if not self.only or name in self.only]


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of one quantity, and how far they lie apart."""

    median: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        if not values:
            raise CannotMeasure("No value was measured; every round failed.")
        return cls(statistics.median(values), min(values), max(values), len(values))


def named(name: str, values: float | Sequence[float]) -> tuple[Spread, dict[str, float]]:
    """The figures that ``values`` become under ``name``.

    >>> named("restart_seconds", 1.5)[1]
    {'restart_seconds': 1.5}
    >>> named("restart_seconds", [3.0, 1.0, 2.0])[1]
    {'restart_p50_seconds': 2.0, 'restart_min_seconds': 1.0, 'restart_max_seconds': 3.0, 'restart_count': 3}
    """
    unit = max((unit for unit in UNITS if name.endswith(f"_{unit}")), key=len, default="")
    if not unit:
        raise ValueError(f"The name of a figure ends in its unit, and {name!r} ends in none of {', '.join(UNITS)}.")
    if isinstance(values, (int, float)):
        return Spread.of([values]), {name: values}
    summary, stem = Spread.of(values), name.removesuffix(f"_{unit}")
    return summary, {
        f"{stem}_p50_{unit}": summary.median,
        f"{stem}_min_{unit}": summary.minimum,
        f"{stem}_max_{unit}": summary.maximum,
        f"{stem}_count": summary.count,
    }


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit for a figure."""

    what: str
    figure: float
    bar: float
    holds: bool
    relation: str = "<="
    """Required relation of the figure to the limit: ``<=`` or ``>=``."""


@dataclass(slots=True)
class Report:
    """Results of a measurement."""

    figures: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """Further keys of the line of JSON."""

    def figure(self, name: str, values: float | Sequence[float]) -> Spread:
        """Add one value unchanged, or many as median, minimum, maximum and count; return their spread."""
        summary, entries = named(name, values)
        self.figures.update(entries)
        return summary

    def baseline(self, name: str, values: float | Sequence[float]) -> Spread:
        """Add a figure of the baseline, like :meth:`figure`."""
        summary, entries = named(name, values)
        self.baselines.update(entries)
        return summary

    def at_most(self, what: str, figure: float, bar: float) -> None:
        """Require that ``figure`` is at most ``bar``. NaN fails."""
        self.bars.append(Bar(what, figure, bar, figure <= bar))

    def at_least(self, what: str, figure: float, bar: float) -> None:
        """Require that ``figure`` is at least ``bar``. NaN fails."""
        self.bars.append(Bar(what, figure, bar, figure >= bar, ">="))

    @property
    def holds(self) -> bool:
        """True if every limit holds."""
        return all(bar.holds for bar in self.bars)


def interleaved(arms: Mapping[str, Callable[[], float]], *, rounds: int, options: Options) -> dict[str, list[float]]:
    """Measure every arm once per round, in a random order per round.

    Varying load then affects all arms equally. Value *i* of one arm was measured next to value *i* of every other;
    :func:`paired_ratio` compares these.
    """
    values: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(1, rounds + 1):
        for name in options.random.sample(list(arms), k=len(arms)):
            values[name].append(arms[name]())
        latest = ", ".join(f"{name} {values[name][-1]:.4g}" for name in arms)
        options.progress(f"round {number}/{rounds}: {latest}")
    return values


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return the ratio of each round; infinite where the denominator is 0."""
    return [a / b if b else math.inf for a, b in zip(numerators, denominators, strict=True)]


def machine() -> dict[str, str | int | float]:
    """Return a description of this machine."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "load_1m_ratio": round(os.getloadavg()[0] / len(os.sched_getaffinity(0)), 2),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
