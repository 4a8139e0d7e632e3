"""Notices to nodes that wait for a group: which others are ready, and which are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ddp_trainer.launch.protocol.messages import MOST_NAMED, Policy, Waiting
from ddp_trainer.launch.rendezvous.node_registry import Agent
from ddp_trainer.launch.rendezvous.ranks import absent, in_order

MOST_TOLD: Final = 64
"""Up to so many nodes, each receives a notice when another comes. Of more, only the one that comes does: the notices
would grow with the square of their number."""


class WaitingNotifier:
    """The nodes of the last notice."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def news(self, ready: Mapping[str, Agent], policy: Policy | None) -> Iterator[tuple[Agent, Waiting]]:
        """Yield each agent with its notice; ``ready`` are those that wait, by token."""
        if ready.keys() == self._told:
            return
        before, self._told = self._told, frozenset(ready)
        few = len(ready) <= MOST_TOLD
        nodes = [agent.node for agent in ready.values()]
        names = [node.name for node in in_order(nodes)] if few else []
        missing = absent(nodes, policy.min_nodes) if policy and few else ()
        waiting = Waiting(
            nodes=len(ready),
            spare=False,
            names=tuple(names[:MOST_NAMED]),
            missing=missing[:MOST_NAMED],
            missing_count=len(missing),
        )
        for token, agent in ready.items():
            if few or token not in before:
                yield agent, waiting
