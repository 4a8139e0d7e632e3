"""Output of findings as text and as the versioned JSON of ``-o json``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kubectl_ddp.status.job_tables import state_cell
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import Style, duration
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Finding

_ASIDE: Final = "Besides"


def text(facts: Facts, found: Sequence[Finding], style: Style) -> str:
    """Return the findings as text: the first cause, then the others, then findings that do not block the job."""
    return "\n".join(_lines(facts, found, style))


def _lines(facts: Facts, found: Sequence[Finding], style: Style) -> Iterator[str]:
    state = facts.state
    cell = state_cell(state.state)
    place = f"{state.where}, namespace {state.namespace}" if state.namespace else state.where
    yield (
        f"Job {state.name} ({place}) is {style.apply_color(cell.text, cell.color)}, {duration(facts.age_seconds)} old."
    )
    is_after_aside = False
    for number, finding in enumerate(found, start=1):
        if finding.is_aside and number > 1 and not is_after_aside:
            is_after_aside = True
            yield f"\n{_ASIDE}, and not what it waits for now:"
        yield ""
        yield f"{number}. {style.apply_color(finding.cause, 'bold')}: {finding.message}"
        for line in finding.evidence:
            yield f"     {style.apply_color(line, 'dim')}"
        if finding.help:
            yield f"   → {finding.help}"


def diagnosis_to_dict(facts: Facts, found: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as a JSON object. Times are Unix times."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Diagnosis",
        "job": facts.name,
        "namespace": facts.state.namespace,
        "where": facts.state.where,
        "state": str(facts.state.state),
        "cause": str(found[0].cause) if found else None,
        "exitCode": found[0].code if found else 0,
        "findings": [
            {
                "cause": str(finding.cause),
                "sentence": finding.message,
                "evidence": list(finding.evidence),
                "help": finding.help,
                "aside": finding.is_aside,
                "exitCode": finding.code,
            }
            for finding in found
        ],
        "notLookedAt": list(facts.around.unseen),
        "time": facts.now,
    }
