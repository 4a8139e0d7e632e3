"""Findings: results of checks of jobs, clusters and this machine, with one text form and one JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from kubectl_ddp.util.text_table import Style, pluralize


class Severity(StrEnum):
    """Severity of a finding, in descending order."""

    ERROR = "error"
    """The job or the command cannot work."""
    WARNING = "warning"
    """A function is limited, the job has to wait, or a setting is probably unintended."""
    UNKNOWN = "unknown"
    """The check could not read its facts."""
    INFO = "info"
    """The finding has no effect now."""
    OK = "ok"


SEVERITIES: Final = tuple(Severity)
"""Severities in descending order."""
_COLORS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.OK: "green"}
_WIDTH: Final = max(map(len, SEVERITIES))


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    severity: Severity
    message: str
    hint: str = ""
    """Suggested fix."""
    evidence: tuple[str, ...] = ()
    """Observations and sources on which the finding is based."""
    subject: str = ""
    """What was checked, or the cause that was found."""
    rule: str = ""
    """Id of a lint rule."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.label, f"{self.message} {self.hint}".strip())))

    @property
    def label(self) -> str:
        """Subject and rule."""
        return f"{self.subject} {self.rule}".strip()


error = partial(Finding, Severity.ERROR)
warning = partial(Finding, Severity.WARNING)
ok = partial(Finding, Severity.OK)


def findings_text(findings: Sequence[Finding], style: Style) -> str:
    """Return the findings as text: one line each, with evidence and hint below."""
    return "\n".join(_lines(findings, style))


def _lines(findings: Sequence[Finding], style: Style) -> Iterator[str]:
    width = max((len(finding.label) for finding in findings), default=0)
    indent = " " * (_WIDTH + 2)
    for finding in findings:
        severity = style.apply_color(finding.severity.upper().ljust(_WIDTH), _COLORS.get(finding.severity, "dim"))
        yield f"{severity}  {finding.label.ljust(width)}  {finding.message}"
        yield from (f"{indent}  {style.apply_color(line, 'dim')}" for line in finding.evidence)
        yield from (f"{indent}→ {line}" for line in finding.hint.splitlines())


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """Return the JSON of a finding."""
    return {
        "severity": str(finding.severity),
        "subject": str(finding.subject),
        "rule": finding.rule,
        "message": finding.message,
        "hint": finding.hint,
        "evidence": list(finding.evidence),
    }


def max_severity(findings: Sequence[Finding]) -> Severity:
    """Return the most severe severity of the findings; OK if there are none."""
    return min((finding.severity for finding in findings), key=SEVERITIES.index, default=Severity.OK)


def summarize_failures(findings: Sequence[Finding], *, is_strict: bool) -> str:
    """Return the number of errors and warnings, such as ``1 error and 2 warnings``.

    Returns:
        An empty string if there are no errors, and with ``is_strict`` no warnings either.
    """
    counts = Counter(finding.severity for finding in findings)
    counted = [
        pluralize(counts[severity], severity) for severity in (Severity.ERROR, Severity.WARNING) if counts[severity]
    ]
    return " and ".join(counted) if is_strict or counts[Severity.ERROR] else ""
