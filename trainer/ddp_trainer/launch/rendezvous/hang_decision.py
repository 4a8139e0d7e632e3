"""The store's part of the hang watch: ask everybody how they look, and say who is waited for. No socket, no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from ddp_trainer.common.hanging.look import WARNING, Look
from ddp_trainer.common.hanging.naming import Culprit, culprits, nobody_missing
from ddp_trainer.launch.protocol.messages import Alarm, Hung, Looks, Show

FRESH_SECONDS: Final = 5.0
"""Looks that were taken further apart than this are not of one moment."""
ASK_SECONDS: Final = 0.5
"""Agents that raise the alarm together are answered by one question."""


@dataclass(slots=True)
class HangJudge:
    """What the agents of one generation have told."""

    _looks: dict[str, tuple[float, tuple[Look, ...]]] = field(default_factory=dict)
    _asked_at: float = -FRESH_SECONDS
    _told: tuple[tuple[int, ...], bool] = ((), False)

    def receive(self, token: str, message: Alarm | Looks, expected: Collection[str], now: float) -> Show | Hung | None:
        """An agent said something; what is to be said to all whose workers run, who are ``expected`` to answer."""
        if isinstance(message, Looks):
            self._looks[token] = (now, message.ranks)
            return self._verdict(expected, now, message.generation)
        if now < self._asked_at + ASK_SECONDS:
            return None
        self._asked_at = now
        return Show(generation=message.generation)

    def _verdict(self, expected: Collection[str], now: float, generation: int) -> Hung | None:
        """When all have told, who it is, unless that has been said."""
        fresh = {known for known, (when, _) in self._looks.items() if when >= now - FRESH_SECONDS}
        if not fresh.issuperset(expected):
            return None
        looks = sorted((look for each in expected for look in self._looks[each][1]), key=lambda look: look.rank)
        named = [culprit for culprit in culprits(looks) if _is_reported(culprit, looks)]
        declared = any(culprit.look.is_overdue(1.0) for culprit in named)
        stuck = "" if named else nobody_missing(looks)
        verdict = (tuple(culprit.look.rank for culprit in named), declared or bool(stuck))
        if verdict == self._told:
            return None
        self._told = verdict
        if stuck:
            return Hung(generation=generation, ranks=(), to_kill=(), sentences=(stuck,))
        return verdict_of(named, generation, declared=declared) if named else None


def _is_reported(culprit: Culprit, looks: Collection[Look]) -> bool:
    """Before half of its limit a rank is reported only if another rank waits in a collective."""
    waits = any(look.waits_in or look.sequence > culprit.look.sequence for look in looks)
    return culprit.look.is_overdue(WARNING) or (culprit.is_waited_for and waits)


def verdict_of(named: list[Culprit], generation: int, *, declared: bool) -> Hung:
    """What all agents are told."""
    return Hung(
        generation=generation,
        ranks=tuple(culprit.look.rank for culprit in named),
        to_kill=tuple(culprit.look.rank for culprit in named if culprit.may_be_killed) if declared else (),
        sentences=tuple(culprit.sentence for culprit in named),
    )
