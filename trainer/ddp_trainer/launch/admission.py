"""Which agents the store has anything to say to, and what it asks of one before it is taken in."""

from __future__ import annotations

from ddp_trainer.launch.protocol import VERSION, Hello
from ddp_trainer.launch.roster import Agent, Roster


def objection(hello: Hello, run_id: str) -> str:
    """Why an agent cannot take part in the run, as a sentence; empty when it can. No run id yet: any will do."""
    if hello.version != VERSION:
        return f"The store speaks version {VERSION} of the protocol, this launcher {hello.version}; use one image."
    if run_id and hello.run_id != run_id:
        return f"The store serves run {run_id!r}, not {hello.run_id!r}: a newer submission has replaced this one."
    policy = hello.policy
    if not 1 <= policy.min_nodes <= policy.max_nodes or hello.node.local_world_size < 1:
        return f"No group of {policy.min_nodes}:{policy.max_nodes} nodes can be formed."
    return ""


def should_prepare(agent: Agent, roster: Roster) -> bool:
    """Whether a node is to get ready before a group that runs is stopped for it.

    Only where the others' workers stay meanwhile, so that the stop is short; and once, for it may be unable to.
    """
    is_due = not (agent.is_prepared or agent.was_asked_to_prepare or roster.is_member(agent.node.token))
    members = roster.members()
    return is_due and bool(members) and all(member.outlive for member in members)
