"""Tables of ``docs/lint.md``, from the rules about variables."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_trainer.common.lint.model import Rule
from ddp_trainer.common.lint.registry import RULES


def lines() -> Iterator[str]:
    """Yield the lines of the tables."""
    for letter, title in (("N", "NCCL"), ("T", "torch")):
        yield from ("", f"## {title}", "", "| Rule | Severity | Looks for | Node | Source |")
        yield "| --- | --- | --- | --- | --- |"
        yield from (_row(rule) for rule in RULES if rule.id.startswith(letter))


def _row(rule: Rule) -> str:
    address, _, place = rule.source.partition(" ")
    source = f"[source]({address}){' ' + place if place else ''}"
    node = "yes" if rule.needs_node else ""
    return f"| {rule.id} | {rule.severity} | {rule.looks_for} | {node} | {source} |"
