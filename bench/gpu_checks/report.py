"""The table of docs/status.md from reports of ``bench gpu``: ``python -m bench.gpu_checks.report [REPORT]``.

``docs/gpu-report.json`` keeps the last result of each check that ran on a GPU. A new report replaces the results of the
checks that it has; a check that did not run replaces nothing. Without a report the table is written again from what is
kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Status
from bench.gpu_checks.registry import CHECKS

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "status.md"
REPORT_FILE: Final = ROOT / "docs" / "gpu-report.json"
REPORT: Final = ROOT / "build" / "gpu" / "report.json"
BEGIN: Final = "<!-- Written by `make gpu-report`; a test keeps it in step. -->"
END: Final = "<!-- The end of what `make gpu-report` writes. -->"
NEVER: Final = "never run"
NOTHING: Final = "\N{EN DASH}"
NO_RUN: Final = "No check has run on a GPU."
COLUMNS: Final = ("Check", "Result", "Date", "Hardware", "Driver", "Versions", "Figure", "Required")
MOST_LETTERS: Final = 160


class InvalidReport(Exception):
    """A report that shows nothing about a GPU; the message is one sentence."""


def merge_reports(saved: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept after a report, by the letter of the check; a report without a GPU changes nothing.

    Raises:
        InvalidReport: The report is of a rehearsal, of small sizes, or of an unknown commit.
    """
    if report["device"] != "cuda" or report["is_small"]:
        raise InvalidReport("it is of a rehearsal or of small sizes, and shows nothing about GPUs.")
    if not report["commit"]:
        raise InvalidReport("it names no commit: set DDP_BENCH_COMMIT where bench gpu runs without .git.")
    ran = [check for check in report["checks"] if check["status"] != Status.NOT_RUN and report["machine"]["gpu"]]
    where = {"date": report["date"], "commit": report["commit"], "machine": report["machine"]}
    return dict(saved) | {check["check"]: check | where for check in ran}


def table_of(saved: Mapping[str, Any]) -> str:
    """Return a row for each check, with ``never run`` for those without a result."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for check in CHECKS:
        found = saved.get(check.letter)
        cells = (NEVER, *[NOTHING] * (len(COLUMNS) - 2)) if found is None else _format_row(found)
        lines.append(f"| **{check.letter}** {check.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _format_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    machine, bars = found["machine"], found["bars"]
    versions = {"torch": machine.get("torch"), "CUDA": machine.get("cuda"), "NCCL": machine.get("nccl")}
    return (
        _result(found),
        found["date"],
        _plain(machine["gpu"]),
        _plain(machine.get("driver") or "not known"),
        ", ".join(f"{name} {_plain(version)}" for name, version in versions.items() if version),
        "<br>".join(f"{_plain(bar['what'])}: {_number(bar['figure'])}" for bar in bars),
        "<br>".join(f"{_plain(bar['what'])}: {bar['relation']} {_number(bar['bar'])}" for bar in bars),
    )


def _result(found: Mapping[str, Any]) -> str:
    reason = f": {_plain(found['reason'])}" if found["reason"] else ""
    without = "; ".join(f"{_plain(part)} ({_plain(why)})" for part, why in found["unsupported"].items())
    return f"{found['status']}{reason}" + (f"<br>left out: {without}" if without else "")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _plain(text: str) -> str:
    """Text that means nothing to Markdown, in at most so many letters."""
    words = " ".join(str(text).split())[:MOST_LETTERS]
    return "".join(f"\\{letter}" if letter in "\\|`*_<>[]" else letter for letter in words)


def with_table(page: str, saved: Mapping[str, Any]) -> str:
    """Return the page with the table of what is kept."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks the marks between which the table stands.")
    words = table_of(saved) if saved else f"{NO_RUN}\n\n{table_of(saved)}"
    return f"{before}{begin}\n\n{words}\n\n{end}{after}"


def load_results(file: Path = REPORT_FILE) -> dict[str, Any]:
    """Return the last result of each check, or nothing."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def main(argv: list[str]) -> int:
    """Store a report, if there is one, and write the table."""
    file = Path(argv[0]) if argv else REPORT
    before = load_results()
    try:
        given = json.loads(file.read_text(encoding="utf-8")) if argv or file.exists() else None
        saved = before if given is None else merge_reports(before, given)
    except KeyError as missing:
        print(f"gpu-report: {file} is not a report of bench gpu: it lacks {missing}.", file=sys.stderr)
        return 2
    except (InvalidReport, OSError, ValueError) as error:
        print(f"gpu-report: {file} cannot be stored: {error}", file=sys.stderr)
        return 2
    if saved != before:
        REPORT_FILE.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif given is not None:
        print(f"gpu-report: no check of {file} ran on a GPU; nothing new is stored.", file=sys.stderr)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), saved), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
