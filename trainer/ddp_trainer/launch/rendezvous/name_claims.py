"""Names of agents: a name belongs to its connection. A recreated pod waits until the former pod is lost or leaves."""

from __future__ import annotations

from typing import Final

from ddp_trainer.launch.protocol.messages import Waiting
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry

_NAME_IS_TAKEN: Final = (
    "Another agent named {name} is connected, and this one takes its place when that one leaves; "
    "give each node its own name if both are to run."
)


def name_is_taken(agent: Agent) -> Waiting:
    """Return the message to an agent that waits for its name."""
    return Waiting(nodes=0, spare=False, namesake=_NAME_IS_TAKEN.format(name=agent.node.name))


def claim_name(agent: Agent, roster: NodeRegistry) -> list[Agent] | None:
    """Give an agent that connects its name, or let it wait for the name.

    Returns:
        The former agents of the name, which all leave; None if the agent reconnects or waits.
    """
    known = roster.agents.get(agent.node.token)
    if known and not known.waits_for_name:
        return None  # it already has the name and reconnects
    namesakes = roster.agents_with_same_name(agent.node)
    if not all(namesake.leaving for namesake in namesakes):
        agent.waits_for_name = True
        return None
    return namesakes


def pass_on_name(lost: Agent, roster: NodeRegistry) -> Agent | None:
    """Give the name of a lost agent to the agent that has waited for it longest, and return that agent."""
    if lost.waits_for_name:
        return None  # it had no name
    heirs = [each for each in roster.agents_with_same_name(lost.node) if each.waits_for_name]
    heir = min(heirs, key=lambda each: each.peer or 0, default=None)  # the one that connected first
    if heir is not None:
        heir.waits_for_name = False
    return heir
