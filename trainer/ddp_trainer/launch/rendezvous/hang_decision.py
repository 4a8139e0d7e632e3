"""Hang decision of the store: compare the state of all ranks and identify those that the others wait for.

:class:`HangAnalyzer` receives alarms and states from the agents and returns the next message to them. It uses neither
sockets nor a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ddp_trainer.common.hanging import WARNING, BlockingRank, RankStatus, all_waiting_message, find_culprits
from ddp_trainer.launch.protocol.messages import HangingRanks, RankStates, Show, SuspectHang
from ddp_trainer.launch.rendezvous.node_registry import RegisteredAgent

FRESH_SECONDS: Final = 5.0
"""Looks that were taken further apart than this do not show one moment."""
ASK_SECONDS: Final = 0.5
"""Alarms within this time get one request for states."""


@dataclass(slots=True)
class HangAnalyzer:
    """Decision about hanging ranks in one generation, from the states of its agents."""

    _statuses: dict[str, tuple[float, tuple[RankStatus, ...]]] = field(default_factory=dict)
    _asked_at: float = -FRESH_SECONDS
    _last_report: tuple[tuple[int, ...], bool] = ((), False)

    def messages(
        self, agent: RegisteredAgent, message: SuspectHang | RankStates, busy: Sequence[RegisteredAgent], now: float
    ) -> Iterator[tuple[RegisteredAgent, Show | HangingRanks]]:
        """Process a report of a rank without progress, and yield each agent with running workers with its message.

        Args:
            agent: Agent that sent the report. Its states count only for its own ranks.
            message: Alarm or states of the agent.
            busy: Agents with running workers.
            now: Current time, in seconds.
        """
        if isinstance(message, RankStates):
            own = tuple(
                replace(status, node=agent.node.name) for status in message.ranks if agent.has_rank(status.rank)
            )
            message = replace(message, ranks=own)
        if reply := self.update(agent.node.token, message, {member.node.token for member in busy}, now):
            for member in busy:
                size = member.node.local_world_size
                yield member, reply.for_node(member.first_rank, size) if isinstance(reply, HangingRanks) else reply

    def update(
        self, token: str, message: SuspectHang | RankStates, expected: Collection[str], now: float
    ) -> Show | HangingRanks | None:
        """Process an alarm or states, and return the next message to all agents with running workers.

        Args:
            token: Token of the agent that sent the message.
            message: Alarm or states of the agent.
            expected: Tokens of the agents whose states are needed for a decision.
            now: Current time, in seconds.

        Returns:
            A request for states, a decision, or None if there is nothing new.
        """
        if isinstance(message, RankStates):
            self._statuses[token] = (now, message.ranks)
            return self._decide(expected, now, message.generation)
        if now < self._asked_at + ASK_SECONDS:
            return None
        self._asked_at = now
        return Show(generation=message.generation)

    def _decide(self, expected: Collection[str], now: float, generation: int) -> HangingRanks | None:
        """Return the decision when all states are fresh; None before, and if it has not changed."""
        fresh = {known for known, (when, _) in self._statuses.items() if when >= now - FRESH_SECONDS}
        if not fresh.issuperset(expected):
            return None
        statuses = sorted(
            (status for token in expected for status in self._statuses[token][1]), key=lambda status: status.rank
        )
        named = [culprit for culprit in find_culprits(statuses) if _is_reported(culprit, statuses)]
        declared = any(culprit.status.has_exceeded_limit(1.0) for culprit in named)
        stuck = "" if named else all_waiting_message(statuses)
        ranks = tuple(culprit.status.rank for culprit in named)
        if (ranks, declared or bool(stuck)) == self._last_report:
            return None
        self._last_report = (ranks, declared or bool(stuck))
        if not named and not stuck:
            return None
        return HangingRanks(
            generation=generation,
            ranks=ranks,
            # A rank is killed only when one is past its limit.
            to_kill=tuple(culprit.status.rank for culprit in named if culprit.may_be_killed) if declared else (),
            sentences=(stuck,) if stuck else tuple(culprit.message for culprit in named),
        )


def _is_reported(culprit: BlockingRank, statuses: Collection[RankStatus]) -> bool:
    """Return whether a rank is reported. Before half of its limit, another rank must wait in a collective."""
    waits = any(status.waits_in or status.sequence > culprit.status.sequence for status in statuses)
    return culprit.status.has_exceeded_limit(WARNING) or (culprit.is_waited_for and waits)
