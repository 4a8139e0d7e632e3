"""Formation of the next worker group: :func:`form_group` chooses its nodes and makes the generation, and
:func:`start_messages` gives each of them its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddp_trainer.launch.protocol.generation import Generation
from ddp_trainer.launch.protocol.messages import Policy, Start, Waiting, encode
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry, PreflightState, median_time_ms
from ddp_trainer.launch.rendezvous.ranks import choose
from ddp_trainer.launch.rendezvous.restart_budget import Budget


def form_group(
    ready: Mapping[str, Agent], roster: NodeRegistry, policy: Policy, budget: Budget, *, number: int, now: float
) -> tuple[Generation, dict[str, Start]]:
    """Return the next generation, and the message to each of its nodes by token.

    Args:
        ready: Agents that can be in the group, by token.
        roster: Agents of the run, with its newest generation.
        policy: Settings of the run.
        budget: Restarts of the run.
        number: Number of the generation.
        now: Time of the store's monotonic clock, in seconds.
    """
    veterans = {node.token for node in roster.generation.nodes} if roster.generation else set()
    nodes = tuple(choose([agent.node for agent in ready.values()], veterans, policy.max_nodes))
    generation = Generation(
        number=number,
        fence=max(roster.fence + 1, int(median_time_ms([ready[node.token] for node in nodes], now))),
        nodes=nodes,
        master_address=nodes[0].address,
        master_port=ready[nodes[0].token].port or 0,
        restarts=dict(budget.restarts),
        restarts_left=budget.left(policy),
    )
    starts = {node.token: Start(assignment=assignment) for node, assignment in generation.assignments()}
    encode(starts[nodes[0].token])  # an unsendable message must not become the state
    return generation, starts


def start_messages(ready: Mapping[str, Agent], starts: Mapping[str, Start]) -> Iterator[tuple[Agent, Start | Waiting]]:
    """Give each node of a group its place, and yield each ready agent with its message.

    Args:
        ready: Agents that could be in the group, by token.
        starts: Messages to the nodes of the group. The other agents wait as spares.
    """
    for token, agent in ready.items():
        if start := starts.get(token):
            agent.port, agent.fitness = None, PreflightState.FIT
            agent.first_rank = start.assignment.first_rank
            yield agent, start
        else:
            yield agent, Waiting(nodes=len(starts), spare=True)
