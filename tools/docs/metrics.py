"""Tables of ``docs/metrics.md``, from the catalogue in :mod:`ddp_trainer.metrics.families.pod_families`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.metrics.families.family import Family, Scope
from ddp_trainer.metrics.families.pod_families import FAMILIES

SCOPES: Final = {
    Scope.RANK: ("Of every rank", "These also carry `rank`, the global rank."),
    Scope.POD: (
        "Of every pod",
        "The launcher's, the exporter's, what its ranks have come to together, checkpoints of its local rank 0.",
    ),
    Scope.JOB: ("Of the job", "Served by the pod of rank 0 alone."),
}

GROWTH: Final = (
    "`ddp_pod_X` is the growth of the counter `ddp_X` since the exporter began, of all ranks of the pod together"
)
GROWTHS: Final = [family.name for family in FAMILIES if family.name.startswith("ddp_pod_")]


def lines() -> Iterator[str]:
    """Yield the lines of the tables."""
    for scope, (title, sentence) in SCOPES.items():
        yield from ("", f"## {title}", "", sentence, "")
        yield "| Metric | Type | Labels | Meaning |"
        yield "| --- | --- | --- | --- |"
        yield from (_row(family) for family in FAMILIES if family.scope is scope and family.name not in GROWTHS)
        if scope is Scope.POD:
            yield from ("", f"{GROWTH}: {', '.join(f'`{name}`' for name in GROWTHS)}.")


def _row(family: Family) -> str:
    values = f": {', '.join(family.values)}" if family.values else ""
    labels = ", ".join(f"`{label}`{values}" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"
