"""Wait of an agent for a generation: :class:`JoinWait` has the state of the link to the store and the last reply."""

from __future__ import annotations

from ddp_trainer.common.constants import Exit, OutsideReason
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.messages import Waiting
from ddp_trainer.launch.rendezvous import waiting_messages


class JoinWait:
    """What an agent has seen of the store since it joined."""

    def __init__(self, endpoint: str, limit_seconds: float, min_nodes: int) -> None:
        self.is_link_up = False
        self.waiting: Waiting | None = None
        """Last reply of the store; None if it has not replied to this join."""
        self.trouble = ""
        """Why the last attempt to reach the store failed; empty if the store has sent a message since."""
        self.failed_stage = OutsideReason.CONNECTION
        """Stage of the last attempt that failed."""
        self._endpoint = endpoint
        self._limit_seconds = limit_seconds
        self._min_nodes = min_nodes

    def link_down(self) -> bool:
        """Record that the link to the store is lost. Return whether it was up."""
        was_up, self.is_link_up = self.is_link_up, False
        self.waiting = None if was_up else self.waiting
        return was_up

    def outside_reason(self, unfit: str) -> OutsideReason:
        """Return why this node is in no group. For ``unfit`` see :meth:`timed_out`."""
        if self.trouble:
            return self.failed_stage
        if self.waiting and self.waiting.namesake:
            return OutsideReason.NAME_TAKEN
        return OutsideReason.PREFLIGHT if unfit else OutsideReason.WAITING

    def timed_out(self, unfit: str) -> Finish:
        """Return how the agent ends when the limit is over.

        Args:
            unfit: Finding of the join preflight; empty if there is none.
        """
        if not self.is_link_up or self.trouble:
            why = waiting_messages.connect_timeout_message(self._endpoint, self._limit_seconds, self.trouble)
        elif unfit:
            why = f"This node was not let in within {self._limit_seconds:g} s. {unfit}."
        else:
            why = waiting_messages.join_timeout_message(
                self._endpoint, self._limit_seconds, self.waiting, self._min_nodes
            )
        return Finish(Exit.USAGE if self.trouble == waiting_messages.WRONG_SECRET else Exit.RENDEZVOUS_LOST, why)
