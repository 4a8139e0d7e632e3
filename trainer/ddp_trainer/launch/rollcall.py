"""While they are too few, those that wait hear who else does, whenever that changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ddp_trainer.launch.protocol import Policy, Waiting
from ddp_trainer.launch.ranks import absent, in_order
from ddp_trainer.launch.roster import Agent

MOST_TOLD: Final = 64
"""Of so many nodes each hears when another comes; of more only the one that comes, else they would be told by the
square of their number.
"""


class RollCall:
    """Remembers who was there when it was told last."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def news(self, ready: Mapping[str, Agent], policy: Policy | None) -> Iterator[tuple[Agent, Waiting]]:
        """Whom to tell what; ``ready`` are those that wait in vain as yet, by token."""
        if ready.keys() == self._told:
            return
        before, self._told = self._told, frozenset(ready)
        few = len(ready) <= MOST_TOLD
        nodes = [agent.node for agent in ready.values()]
        names = tuple(node.name for node in in_order(nodes)) if few else ()
        missing = absent(nodes, policy.min_nodes) if policy else ()
        missing = missing if len(missing) <= MOST_TOLD else ()
        for token, agent in ready.items():
            if few or token not in before:
                yield agent, Waiting(nodes=len(ready), spare=False, names=names, missing=missing)
