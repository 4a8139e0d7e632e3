"""Check of the rights that the commands need, with one line per section."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kubectl_ddp.rbac.model import OWN, Need, Right, summarize_permissions
from kubectl_ddp.rbac.table import SECTIONS, needs
from kubectl_ddp.util.finding import Finding, Severity, ok, warning

MOST_TOLD: Final = 3


def check_permissions(missing: Collection[Right] | None, namespace: str) -> Iterator[Finding]:
    """Yield the missing rights and their consequences. ``None`` means that the API server does not report rights."""
    if missing is None:
        yield warning("what you may do is not told by the API server", "'kubectl auth can-i' asks.", subject="rights")
        return
    for section, commands in SECTIONS.items():
        lacks = [(need, right) for need, right in needs(commands=commands) if right in missing]
        what = f"rights: {section}"
        if lacks:
            named = summarize_permissions(right for _, right in lacks)
            yield Finding(_severity(lacks), f"missing: {named}", _fix(lacks, commands), subject=what)
        else:
            yield ok(f"{', '.join(commands)}: all granted in namespace '{namespace}'", subject=what)


def _severity(lacks: Sequence[tuple[Need, Right]]) -> Severity:
    """Return ERROR if a Role of the namespace is enough to fix it. Broader rights are a matter of trust, so WARNING."""
    fails = any(need.is_required and not need.is_broad and right.where == OWN for need, right in lacks)
    return Severity.ERROR if fails else Severity.WARNING


def _fix(lacks: Sequence[tuple[Need, Right]], commands: Sequence[str]) -> str:
    failing = {each for need, _ in lacks if need.is_required for each in need.commands}
    broad = any(need.is_broad for need, _ in lacks)
    less = list(dict.fromkeys(need.without for need, _ in lacks if need.without))
    if _severity(lacks) is Severity.ERROR:
        less = []  # limitations do not matter for a command that fails
    more = f" and {len(less) - MOST_TOLD} more" if len(less) > MOST_TOLD else ""
    told = [
        f"{', '.join(each for each in commands if each in failing)} cannot work" if failing else "",
        "it opens every pod of the namespace, so request it separately" if broad else "",
        f"{'; '.join(less[:MOST_TOLD])}{more}" if less else "",
    ]
    text = "; ".join(filter(None, told))
    return f"{text[:1].upper()}{text[1:]}."
