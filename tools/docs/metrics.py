"""Tables of ``docs/metrics.md``, from the catalogue in :mod:`ddp_trainer.metrics.families.registry`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.metrics.families.family import Family, Scope
from ddp_trainer.metrics.families.registry import FAMILIES

SCOPES: Final = {
    Scope.RANK: ("Of every rank", "These also carry `rank`, the global rank."),
    Scope.POD: (
        "Of every pod",
        "The launcher's, the exporter's, what its ranks have come to together, checkpoints of its local rank 0.",
    ),
    Scope.JOB: ("Of the job", "Served by the pod of rank 0 alone."),
}


def lines() -> Iterator[str]:
    """Yield the lines of the tables."""
    for scope, (title, sentence) in SCOPES.items():
        yield from ("", f"## {title}", "", sentence, "")
        yield "| Metric | Type | Unit | Labels | Meaning | From |"
        yield "| --- | --- | --- | --- | --- | --- |"
        yield from (_row(family) for family in FAMILIES if family.scope is scope)


def _row(family: Family) -> str:
    values = f": {', '.join(family.values)}" if family.values else ""
    labels = ", ".join(f"`{label}`{values}" for label in family.labels) or "–"  # noqa: RUF001 - a dash in prose
    return (
        f"| `{family.name}` | {family.kind} | {family.unit or '–'} "  # noqa: RUF001 - a dash in prose
        f"| {labels} | {family.help} | {family.source} |"
    )
