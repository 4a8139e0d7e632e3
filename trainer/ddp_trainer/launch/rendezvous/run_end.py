"""End of a run: :class:`RunEnd` has the result that the agents receive, and decides when they may exit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.failures.failure_reason import shorten
from ddp_trainer.launch.protocol.message_fields import MESSAGE_CHARACTERS
from ddp_trainer.launch.protocol.messages import Over, Part, Verdict
from ddp_trainer.launch.rendezvous.node_registry import NodeRegistry
from ddp_trainer.launch.rendezvous.waiting_notifications import MOST_TOLD


class RunEnd:
    """Result of one run, and the members that are done."""

    def __init__(self, roster: NodeRegistry) -> None:
        self.over: Over | None = None
        self.has_parted = False
        """The run is over, and all members of its last group are done."""
        self._roster = roster
        self._said_goodbye: set[str] = set()

    def record_leave(self, token: str) -> None:
        """Record that an agent has received the end, or leaves before it."""
        self._said_goodbye.add(token)

    def begin(self, over: Over, restarts: Mapping[str, int]) -> Over:
        """Return the result as the agents receive it."""
        over = replace(over, restarts=dict(restarts))
        if over.failure and len(self._roster.agents) > MOST_TOLD:
            short = shorten(over.failure.stack, MESSAGE_CHARACTERS)
            over = replace(over, failure=replace(over.failure, stack=short))
        self.over = over
        return over

    def late_messages(self) -> tuple[()] | tuple[Over, Part]:
        """Return the messages to an agent that connects when the run is over; none while it is not."""
        if self.over is None:
            return ()
        code = self.over.exit_code if self.over.verdict is Verdict.SUCCEEDED else Exit.DO_NOT_RESTART
        return replace(self.over, late=True, exit_code=code), Part()

    def part(self) -> bool:
        """Return whether all agents are released now. See :mod:`~ddp_trainer.launch.agent.exit_barrier`."""
        waited_for = [agent for agent in self._roster.members() if agent.peer is not None]
        if self.has_parted or not all(agent.leaving for agent in waited_for):
            return False
        self.has_parted = True
        return True

    @property
    def has_missing_member(self) -> bool:
        """True if the run has succeeded but a node left before it reported the end.

        The pod that replaces the node will connect.
        """
        nodes = self._roster.generation.nodes if self._roster.generation else ()
        has_succeeded = self.over is not None and self.over.verdict is Verdict.SUCCEEDED
        return has_succeeded and any(node.token not in self._said_goodbye for node in nodes)
