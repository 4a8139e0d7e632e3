"""What a look found: one line per thing looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kubectl_ddp.json_output import API_VERSION
from kubectl_ddp.present import Cell, Table


class Verdict(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    """Something works less well, or could not be looked at."""
    FAIL = "fail"
    """A command or a job cannot work."""


_COLORS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""
    """What to do, where something is to be done."""


def table(looks: Sequence[CheckResult]) -> Table:
    """One row each."""
    rows: list[Sequence[Cell]] = [
        [Cell(look.what), Cell(look.verdict, _COLORS[look.verdict]), Cell(look.found), Cell(look.fix)] for look in looks
    ]
    return Table(("WHAT", "VERDICT", "FOUND", "FIX"), rows)


def checks_to_dict(looks: Sequence[CheckResult], **more: Any) -> dict[str, Any]:
    """The same for programs."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Checkup",
        "looks": [
            {"what": look.what, "verdict": str(look.verdict), "found": look.found, "fix": look.fix} for look in looks
        ],
        **more,
    }
