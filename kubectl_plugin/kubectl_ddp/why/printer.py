"""Output of findings as text and as the versioned JSON of ``-o json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kubectl_ddp.status.job_tables import state_cell
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.finding import finding_to_dict, findings_text
from kubectl_ddp.util.text_table import Style, duration
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import CauseFinding


def diagnosis_text(facts: Facts, found: Sequence[CauseFinding], style: Style) -> str:
    """Return the findings as text: the first cause, then the others, then findings that do not block the job."""
    state = facts.state
    cell = state_cell(state.state)
    place = f"{state.where}, namespace {state.namespace}" if state.namespace else state.where
    age = duration(facts.age_seconds)
    header = f"Job {state.name} ({place}) is {style.apply_color(cell.text, cell.color)}, {age} old."
    return "\n\n".join(filter(None, (header, findings_text(found, style))))


def diagnosis_to_dict(facts: Facts, found: Sequence[CauseFinding]) -> dict[str, Any]:
    """Return the findings as a JSON object. Times are Unix times."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Diagnosis",
        "job": facts.name,
        "namespace": facts.state.namespace,
        "where": facts.state.where,
        "state": str(facts.state.state),
        "cause": str(found[0].subject) if found else None,
        "exitCode": found[0].exit_code if found else 0,
        "findings": [finding_to_dict(finding) | {"exitCode": finding.exit_code} for finding in found],
        "notLookedAt": list(facts.around.unseen),
        "time": facts.now,
    }
