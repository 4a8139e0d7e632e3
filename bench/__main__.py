"""``python -m bench``: find a measurement, take it, print it as one line of JSON."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import json
import math
import os
import pkgutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from bench import measurements
from bench.descendants import end_with_descendants
from bench.harness import CannotMeasure, Options, Report, machine


class BenchmarkModule(Protocol):
    """Interface of a module in ``bench/measurements``."""

    SUMMARY: str

    def measure(self, options: Options) -> Report:
        """Take the measurement."""
        ...


def names() -> list[str]:
    """Return the name of every measurement."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(measurements.__path__))


def load(name: str) -> BenchmarkModule:
    """The measurement of this name, which must be one of :func:`names`."""
    return cast("BenchmarkModule", importlib.import_module(f"bench.measurements.{name.replace('-', '_')}"))


@contextlib.contextmanager
def redirect_stdout_to_stderr() -> Iterator[int]:
    """Lead file descriptor 1 to stderr, so that no child of a measurement can spoil the lines of JSON.

    Yields:
        The descriptor of stdout.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield stdout
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def as_json(name: str, report: Report, options: Options, seconds: float) -> str:
    """The line of JSON; what is not finite becomes null, because JSON has no such number."""
    return json.dumps(
        {
            "bench": name,
            "figures": {key: _to_json_number(value) for key, value in report.figures.items()},
            "baselines": {key: _to_json_number(value) for key, value in report.baselines.items()},
            "bars": [dataclasses.asdict(bar) | {"figure": _to_json_number(bar.figure)} for bar in report.bars],
            "machine": machine(),
            "seed": options.seed,
            "quick": options.quick,
            "seconds": round(seconds, 1),
            **report.details,
        },
        allow_nan=False,
    )


def _to_json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run(name: str, options: Options) -> int:
    """Take one measurement and print it; 1 where a bar does not hold."""
    begun = time.monotonic()
    with redirect_stdout_to_stderr() as stdout:
        measurement = load(name)
        options.parts(getattr(measurement, "PARTS", ()))  # before it takes its time
        has_budget = getattr(measurement, "HAS_BUDGET", False)
        if options.budget_seconds is not None and not has_budget:
            raise CannotMeasure("It has no --budget.")
        if options.out and not (has_budget or getattr(measurement, "HAS_OUT", False)):
            raise CannotMeasure("It has no --out.")

        def emit(line: Mapping[str, Any]) -> None:
            os.write(stdout, f"{json.dumps(line)}\n".encode())

        options = dataclasses.replace(options, emit=emit)
        report = measurement.measure(options)
    for bar in report.bars:
        options.progress(f"{'holds' if bar.holds else 'FAILS'}: {bar.what}: {bar.figure:.4g} (bar {bar.bar:.4g})")
    print(as_json(name, report, options, time.monotonic() - begun), flush=True)
    return 0 if report.holds else 1


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a positive number of seconds")
    return seconds


def parser() -> argparse.ArgumentParser:
    """The command line."""
    described = argparse.ArgumentParser(prog="python -m bench", description="Take one measurement of this project.")
    described.add_argument("name", nargs="?", metavar="NAME", help="the measurement to take; see --list")
    described.add_argument("--list", action="store_true", help="name every measurement with one sentence")
    described.add_argument("--quick", action="store_true", help="fewer rounds")
    described.add_argument(
        "--only", default="", metavar="PARTS", help="parts of a measurement that has some, with commas"
    )
    described.add_argument("--budget", type=_seconds, metavar="SECONDS", help="wall time of gpu (default 480)")
    described.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the files of gpu (default build/gpu) or scale"
    )
    described.add_argument("--seed", type=int, default=0, help="of schedules and the order of turns (default 0)")
    return described


def _options(arguments: argparse.Namespace) -> Options:
    only = frozenset(filter(None, map(str.strip, arguments.only.split(","))))
    return Options(
        quick=arguments.quick, seed=arguments.seed, only=only, budget_seconds=arguments.budget, out=arguments.out
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see :mod:`bench` for the exit codes."""
    arguments = parser().parse_args(argv)
    known = names()
    if arguments.list:
        print("\n".join(f"{name:<16} {load(name).SUMMARY}" for name in known))
        return 0
    if arguments.name not in known:
        near = difflib.get_close_matches(arguments.name or "", known, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
        print(f"bench: no measurement is named {arguments.name!r}: {meant}", file=sys.stderr)
        return 2
    try:
        return run(arguments.name, _options(arguments))
    except CannotMeasure as missing:
        print(f"bench: {arguments.name} cannot be measured here: {missing}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    end_with_descendants()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each start of torch takes three times as long
    sys.exit(main())
