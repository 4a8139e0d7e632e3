"""Generator of the tables at the end of ``docs/metrics.md``: ``python -m ddp_trainer.metrics.docgen docs/metrics.md``.

:func:`with_tables` returns the page with tables of the catalogue in :mod:`ddp_trainer.metrics.families.registry`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ddp_trainer.metrics.families.family import Family, Scope
from ddp_trainer.metrics.families.registry import FAMILIES

BEGIN: Final = "<!-- Below: written by `make docs`; a test keeps it in step. -->"

SCOPES: Final = {
    Scope.RANK: ("Of every rank", "These also carry `rank`, the global rank."),
    Scope.POD: (
        "Of every pod",
        "The launcher's, the exporter's, what its ranks have come to together, checkpoints of its local rank 0.",
    ),
    Scope.JOB: ("Of the job", "Served by the pod of rank 0 alone."),
}


def with_tables(page: str) -> str:
    """Return the page with all that follows :data:`BEGIN` written again."""
    return "\n".join([page.partition(BEGIN)[0] + BEGIN, *_lines()]) + "\n"


def _lines() -> Iterator[str]:
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


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
