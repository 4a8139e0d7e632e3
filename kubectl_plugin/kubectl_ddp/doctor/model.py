"""Results of doctor's checks, one line per check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import Cell, Table


class Verdict(StrEnum):
    """Result of one check."""

    OK = "ok"
    WARN = "warn"
    """Some function is limited, or the check was not possible."""
    FAIL = "fail"
    """A command or a job cannot work."""


_COLORS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check with its result."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""
    """Suggested fix; empty if none is needed."""


def table(looks: Sequence[CheckResult]) -> Table:
    """Return a table with one row per check."""
    rows: list[Sequence[Cell]] = [
        [Cell(look.what), Cell(look.verdict, _COLORS[look.verdict]), Cell(look.found), Cell(look.fix)] for look in looks
    ]
    return Table(("WHAT", "VERDICT", "FOUND", "FIX"), rows)


def checks_to_dict(looks: Sequence[CheckResult], **more: Any) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Checkup",
        "looks": [
            {"what": look.what, "verdict": str(look.verdict), "found": look.found, "fix": look.fix} for look in looks
        ],
        **more,
    }
