"""Which agents the store has anything to say to, and what it asks of one before it is taken in."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_trainer.launch.identity import in_use, is_same_job
from ddp_trainer.launch.protocol import VERSION, Hello
from ddp_trainer.launch.roster import Agent, Roster


def objection(hello: Hello, run_id: str, roster: Roster) -> str:
    """Why an agent cannot take part in the run, as a sentence; empty when it can. No run id yet: any will do."""
    if hello.version != VERSION:
        return f"The store speaks version {VERSION} of the protocol, this launcher {hello.version}; use one image."
    if run_id and hello.run_id != run_id:
        return f"The store serves run {run_id!r}, not {hello.run_id!r}: a newer submission has replaced this one."
    policy = hello.policy
    if not 1 <= policy.min_nodes <= policy.max_nodes or hello.node.local_world_size < 1:
        return f"No group of {policy.min_nodes}:{policy.max_nodes} nodes can be formed."
    is_new = hello.last is None and hello.node.token not in roster.agents
    owner = next(_of_another_job(hello, roster), None) if is_new else None
    return in_use(hello.run_id, owner.node, owner.identity, hello.identity) if owner else ""


def intruders(hello: Hello, roster: Roster) -> Iterator[tuple[Agent, str]]:
    """Whom a store has let in that had forgotten whose run it is, with what they are told, now that ``hello`` tells."""
    for agent in list(_of_another_job(hello, roster)):
        if not roster.is_member(agent.node.token):
            yield agent, in_use(hello.run_id, hello.node, hello.identity, agent.identity)


def _of_another_job(hello: Hello, roster: Roster) -> Iterator[Agent]:
    """Those that are there and run something else. One that leaves, or whose pod was made anew, has no say any more."""
    for agent in roster.agents.values():
        is_there = not agent.leaving and agent.node.name != hello.node.name
        if is_there and agent.node.role == hello.node.role and not is_same_job(agent.identity, hello.identity):
            yield agent


def should_prepare(agent: Agent, roster: Roster) -> bool:
    """Whether a node is to get ready before a group that runs is stopped for it.

    Only where the others' workers stay meanwhile, so that the stop is short; and once, for it may be unable to.
    """
    is_due = not (agent.is_prepared or agent.was_asked_to_prepare or roster.is_member(agent.node.token))
    members = roster.members()
    return is_due and bool(members) and all(member.outlive for member in members)
