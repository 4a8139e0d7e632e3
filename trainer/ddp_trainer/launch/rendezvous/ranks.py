"""Selection of the nodes of a group and their order: ranks follow the index of the pod.

:func:`choose` selects the nodes, :func:`in_order` sorts them. torch's own rendezvous sorts by address, so worker-10
comes before worker-2. This undoes the work of a scheduler that placed neighbours side by side.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ddp_trainer.launch.protocol.generation import Node


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Sort nodes by index. Nodes without one come last, in the natural order of their names (node2 before node10)."""
    return sorted(nodes, key=lambda node: (node.index is None, node.index or 0, _natural(node.name), node.token))


def absent(nodes: Collection[Node], least: int) -> tuple[str, ...]:
    """Return the names of the missing nodes among the first ``least``; empty if a ready node has no index.

    >>> absent([Node(token="a", name="worker-1", index=1, local_world_size=1)], 3)
    ('worker-0', 'worker-2')
    """
    indices = {node.index for node in nodes}
    if None in indices or not nodes:
        return ()
    stems = {node.name.removesuffix(str(node.index)) for node in nodes if node.name.endswith(f"-{node.index}")}
    stem = stems.pop() if len(stems) == 1 else "node "
    return tuple(f"{stem}{index}" for index in range(least) if index not in indices)


def choose(candidates: Collection[Node], veterans: Collection[str], limit: int) -> list[Node]:
    """Return at most ``limit`` candidates in the order of ranks: members of the last group first, then the lowest.

    Args:
        candidates: Nodes to choose from.
        veterans: Tokens of the members of the last group.
        limit: Largest number of nodes.
    """
    ranked = in_order(candidates)
    kept = [node for node in ranked if node.token in veterans] + [node for node in ranked if node.token not in veterans]
    return in_order(kept[:limit])


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)
