"""Output of a preflight: a table for people (:func:`table`), JSON for programs (:func:`preflight_to_json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from ddp_preflight.checks.all_checks import CHECKS
from ddp_preflight.schema import API_VERSION, Facts, Finding, Status, max_status

_MOST_COLUMNS: Final = 8
_CELLS: Final = {Status.OK: "ok", Status.SKIP: "-", Status.WARN: "warn", Status.FAIL: "FAIL"}


def verdict(findings: Sequence[Finding]) -> Status:
    """Return the status of the whole preflight."""
    return max_status(finding.status for finding in findings if finding.status is not Status.SKIP)


def table(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the table of checks and nodes, followed by the findings with their fixes. It ends in a newline."""
    columns = _columns(facts, findings)
    rows = [["CHECK", *columns]]
    for check in CHECKS:
        own = [finding for finding in findings if finding.check == check.name]
        rows.append([check.name, *(_cell(own, node) for node in columns)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    hidden = len(facts.reports) - len(columns)
    if hidden > 0:
        lines.append(f"({hidden} more {'node' if hidden == 1 else 'nodes'}, no worse than these; -o json has them all)")
    return "\n".join([*lines, "", *_finding_lines(findings), _last_line(facts, findings), ""])


def preflight_to_json(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the result as one JSON object; see docs/preflight.md."""
    return json.dumps(
        {
            "apiVersion": API_VERSION,
            "kind": "Preflight",
            "verdict": verdict(findings),
            "expected": facts.expected,
            "findings": [asdict(finding) for finding in findings],
            "nodes": [asdict(report) for report in facts.reports],
            "probes": [asdict(probe) for probe in facts.probes],
        },
        indent=1,
    )


def _columns(facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """Return the names of the nodes in the order of their ranks; of many nodes those with the worst findings."""
    names = [report.name for report in facts.reports]

    def node_severity(name: str) -> int:
        return max_status(finding.status for finding in findings if finding.node == name).severity

    shown = set(sorted(names, key=node_severity, reverse=True)[:_MOST_COLUMNS])
    return [name for name in names if name in shown]


def _cell(findings: Sequence[Finding], node: str) -> str:
    return _CELLS[max_status(finding.status for finding in findings if finding.node in {node, ""})]


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    shown = [finding for finding in findings if finding.status is not Status.SKIP]
    for finding in sorted(shown, key=lambda finding: -finding.status.severity):
        where = f"{finding.node}: " if finding.node else ""
        lines.append(f"{_CELLS[finding.status]:4}  {finding.check}  {where}{finding.message}.")
        if finding.hint:
            lines.append(f"      fix: {finding.hint}.")
    return [*lines, *_skipped(findings), ""] if findings else []


def _skipped(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line per reason, with all checks skipped for it."""
    checks: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status is Status.SKIP:
            checks.setdefault(finding.message, []).append(finding.check)
    for message, names in checks.items():
        yield f"-     {', '.join(dict.fromkeys(names))}: {message}."


def _last_line(facts: Facts, findings: Sequence[Finding]) -> str:
    count = len(facts.reports)
    nodes = f"{count} of {facts.expected} {'node' if facts.expected == 1 else 'nodes'}"
    failed = len({finding.check for finding in findings if finding.status is Status.FAIL})
    warned = len({finding.check for finding in findings if finding.status is Status.WARN})
    if failed:
        return f"preflight: {nodes}, {failed} of {len(CHECKS)} checks {'fails' if failed == 1 else 'fail'}."
    return f"preflight: {nodes}, fit to start" + (
        f"; {warned} of {len(CHECKS)} checks {'warns' if warned == 1 else 'warn'}." if warned else "."
    )
