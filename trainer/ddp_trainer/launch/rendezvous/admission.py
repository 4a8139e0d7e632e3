"""Admission of agents to the run.

:func:`rejection_reason` decides whether an agent may take part, :func:`has_other_numbers` whether it is warned,
:func:`is_newer_group` whether the store adopts its group. :func:`rejected_agents` finds agents of another job.
:func:`should_prepare` decides whether a node prepares its workers before it joins a running group.
:func:`is_message_valid` decides whether a message of an admitted agent counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.job_identity import in_use, is_same_job
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry
from ddp_trainer.process.fence import is_valid_fence

MOST_AHEAD: Final = 1_000_000
"""Most generations that an agent may be ahead of the store. A larger number is ignored."""


def rejection_reason(hello: messages.Hello, run_id: str, roster: NodeRegistry) -> str:
    """Return the reason why an agent cannot take part in the run, as a sentence; empty if it can.

    Args:
        hello: First message of the agent.
        run_id: Id of the run. If empty, the store has none yet and accepts any.
        roster: Agents of the run.
    """
    if hello.version != messages.VERSION:
        versions = f"version {messages.VERSION} of the protocol, this launcher {hello.version}"
        return f"The store speaks {versions}; use one image."
    if run_id and hello.run_id != run_id:
        return f"The store serves another run than {hello.run_id!r}: a newer submission has replaced this one."
    policy = hello.policy
    if not 1 <= policy.min_nodes <= policy.max_nodes:
        return f"No group of {policy.min_nodes}:{policy.max_nodes} nodes can be formed."
    is_new = hello.last is None and hello.node.token not in roster.agents
    has_group = is_new and any(member.peer is not None for member in roster.members())
    others = _other_job_agents(hello, roster) if is_new else iter(())
    owner = next((agent for agent in others if roster.is_member(agent.node.token) or not has_group), None)
    return in_use(hello.run_id, owner.node, owner.identity, hello.identity) if owner else ""


def has_other_numbers(own: messages.Policy, run: messages.Policy) -> bool:
    """Return whether a node was started with another number of nodes or restarts than the run has."""
    return (own.min_nodes, own.max_nodes, own.max_restarts) != (run.min_nodes, run.max_nodes, run.max_restarts)


def is_newer_group(hello: messages.Hello, roster: NodeRegistry, now_ms: float) -> bool:
    """Return whether an agent reports a group that the store must adopt.

    A store without state adopts the group of the first member that connects. A store adopts no other group while a
    member of its group is connected. No store adopts a fence far in the future.

    Args:
        hello: First message of the agent.
        roster: Agents of the run.
        now_ms: Current time, in milliseconds since the epoch.
    """
    last = hello.last
    if last is None or last.fence <= roster.fence or not is_valid_fence(last.fence, now_ms / 1000):
        return False
    return not any(member.peer is not None for member in roster.members())


def rejected_agents(hello: messages.Hello, roster: NodeRegistry) -> Iterator[tuple[Agent, str]]:
    """Yield agents of another job that a store without state has admitted, each with its refusal."""
    for agent in list(_other_job_agents(hello, roster)):
        if not roster.is_member(agent.node.token):
            yield agent, in_use(hello.run_id, hello.node, hello.identity, agent.identity)


def _other_job_agents(hello: messages.Hello, roster: NodeRegistry) -> Iterator[Agent]:
    """Yield agents that run another program. An agent that leaves, or whose pod was replaced, does not count."""
    for role, identity, agents in roster.jobs():
        if role != hello.node.role or is_same_job(identity, hello.identity):
            continue
        yield from (agent for agent in agents if not agent.leaving and agent.node.name != hello.node.name)


def is_message_valid(agent: Agent, message: messages.FromAgent, roster: NodeRegistry) -> bool:
    """Return whether a message counts.

    Every agent holds the secret of the run but may still be wrong. Failures count only for the ranks of the agent that
    sends them, and reports only for the newest group.
    """
    match message:
        case messages.Failed():
            return roster.is_member(agent.node.token) and agent.has_rank(message.failure.rank)
        case messages.Succeeded() | messages.StandBy():
            return message.generation == roster.number and roster.is_member(agent.node.token)
        case messages.WorkerImports():
            return roster.is_member(agent.node.token) and agent.first_rank == 0
        case messages.SuspectHang() | messages.RankStates():
            return message.generation == roster.number
        case _:
            return True


def should_prepare(agent: Agent, roster: NodeRegistry) -> bool:
    """Return whether a node prepares its workers before a running group stops for it.

    This is so only if all members can keep their processes, because the stop is then short. A node receives only one
    request, because it may be unable to prepare.
    """
    is_due = not (agent.is_prepared or agent.was_asked_to_prepare or roster.is_member(agent.node.token))
    members = roster.members() if is_due else []
    return bool(members) and all(member.outlive for member in members)
