"""Check of a node count against the ``--nnodes`` range with which a job was submitted."""

from __future__ import annotations

from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.text_table import pluralize


def validate_node_count(bounds: tuple[int, int], name: str, nodes: int) -> None:
    """Raise UsageError if ``nodes`` is outside the range that the job can have while it runs."""
    low, high = bounds
    if not low <= nodes <= high:
        can = f"between {low} and {high} nodes" if low < high else f"exactly {pluralize(low, 'node')}"
        raise UsageError(
            f"Job '{name}' cannot have {pluralize(nodes, 'node')}: it was submitted for {can}.",
            hint="Submit it again with other --nnodes." if low == high else "Choose a number between them.",
        )
