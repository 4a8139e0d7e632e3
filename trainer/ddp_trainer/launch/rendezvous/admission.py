"""Whether an agent may take part in the run, and when it gets ready to join a running group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.launch.protocol.job_identity import in_use, is_same_job
from ddp_trainer.launch.protocol.messages import VERSION, Hello
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry
from ddp_trainer.process.fence import is_believable

MOST_AHEAD: Final = 1_000_000
"""Generations that an agent may be ahead of the store; a larger number is not believed."""


def objection(hello: Hello, run_id: str, roster: NodeRegistry) -> str:
    """Return why an agent cannot take part in the run, as a sentence; empty if it can.

    Args:
        hello: What the agent has sent.
        run_id: Id of the run; empty where the store has none yet, and takes any.
        roster: The agents of the run.
    """
    if hello.version != VERSION:
        return f"The store speaks version {VERSION} of the protocol, this launcher {hello.version}; use one image."
    if run_id and hello.run_id != run_id:
        return f"The store serves another run than {hello.run_id!r}: a newer submission has replaced this one."
    policy = hello.policy
    if not 1 <= policy.min_nodes <= policy.max_nodes:
        return f"No group of {policy.min_nodes}:{policy.max_nodes} nodes can be formed."
    is_new = hello.last is None and hello.node.token not in roster.agents
    has_group = is_new and any(member.peer is not None for member in roster.members())
    others = _of_another_job(hello, roster) if is_new else iter(())
    owner = next((agent for agent in others if roster.is_member(agent.node.token) or not has_group), None)
    return in_use(hello.run_id, owner.node, owner.identity, hello.identity) if owner else ""


def is_newer_group(hello: Hello, roster: NodeRegistry, now_ms: float) -> bool:
    """Return whether an agent reports a group that the store has to adopt.

    A store without memory learns its group from the first member that connects. A store that has a group with a
    connected member adopts no other, and no store adopts a fence that lies far in the future.
    """
    last = hello.last
    if last is None or last.fence <= roster.fence or not is_believable(last.fence, now_ms / 1000):
        return False
    return not any(member.peer is not None for member in roster.members())


def intruders(hello: Hello, roster: NodeRegistry) -> Iterator[tuple[Agent, str]]:
    """Yield agents of another job that a store without memory has let in, with the sentence for each."""
    for agent in list(_of_another_job(hello, roster)):
        if not roster.is_member(agent.node.token):
            yield agent, in_use(hello.run_id, hello.node, hello.identity, agent.identity)


def _of_another_job(hello: Hello, roster: NodeRegistry) -> Iterator[Agent]:
    """Agents that are there and run something else. One that leaves, or whose pod was replaced, has no say any more."""
    for role, identity, agents in roster.jobs():
        if role != hello.node.role or is_same_job(identity, hello.identity):
            continue
        yield from (agent for agent in agents if not agent.leaving and agent.node.name != hello.node.name)


def should_prepare(agent: Agent, roster: NodeRegistry) -> bool:
    """Return whether a node is to get ready before a running group is stopped for it.

    Only where the others' workers stay meanwhile, so that the stop is short; and once, since it may be unable to.
    """
    is_due = not (agent.is_prepared or agent.was_asked_to_prepare or roster.is_member(agent.node.token))
    members = roster.members() if is_due else []
    return bool(members) and all(member.outlive for member in members)
