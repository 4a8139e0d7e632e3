"""Section of ``docs/rbac.md`` with the permissions that each command needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubectl_ddp.rbac.model import EVERYWHERE, OWN, Need
from kubectl_ddp.rbac.table import NEEDS

HEAD: Final = """\
## Permissions of each command

A test runs every command against a server that records its requests, and compares them with this table.
`kubectl ddp doctor` lists the permissions that you lack, with the Role to request. `submit` and `preflight` do so for
the permissions to submit. They check only kinds that the cluster serves.

The table leaves out discovery and questions about your own permissions, which every authenticated user may ask. *Own*
is the namespace of the job. If *Without* is empty, the commands fail without the permission. No Role of the chart
grants what is marked *broad*: a shell in any pod of the namespace, its Secrets, and pods of your own. `preflight` uses
the last two if you have them.

| Commands | Verbs | Resources | Where | Without |
| --- | --- | --- | --- | --- |"""


def lines() -> Iterator[str]:
    """Yield the lines of the section."""
    yield from HEAD.splitlines()
    yield from map(_row, NEEDS)


def _row(need: Need) -> str:
    commands = ", ".join(f"`{each}`" for each in dict.fromkeys(need.commands))
    resources = ", ".join(f"`{each}`" for each in dict.fromkeys(need.resources))
    named = f", `{', '.join(need.names)}` alone" if need.names else ""
    where = {OWN: "own", EVERYWHERE: "the whole cluster"}.get(need.where, f"`{need.where}`")
    broad = " *broad*" if need.is_broad else ""
    cells = (commands, ", ".join(need.verbs), f"{resources}{named}", where, f"{need.without}{broad}".strip())
    return f"| {' | '.join(cells)} |"
