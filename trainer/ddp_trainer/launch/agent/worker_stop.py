"""Stop of an agent's workers: :class:`WorkerStop` returns whom to ask to leave or to end, and when to kill whom.

It serves :class:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine` and has, like it, no process and no clock.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.agent.agent_limits import Limits
from ddp_trainer.launch.agent.local_workers import LocalWorkers
from ddp_trainer.launch.protocol.actions import Action, Finish, RegroupWorkers, SetTimer, SignalWorkers, Timer

TOLD_TO_STOP: Final = Finish(Exit.TERMINATED)


class WorkerStop:
    """Stop of the workers, for the next generation or for good."""

    def __init__(self, workers: LocalWorkers, limits: Limits) -> None:
        self.ending: Finish | None = None
        """What to do when the workers are gone; None to join again."""
        self.is_graceful = True
        self.longest_step: Callable[[AbstractSet[int]], float] = lambda _: limits.failure
        """Return the seconds that these local ranks may be busy with work that cannot be interrupted, from the hang
        watchdog.
        """
        self.stuck: Callable[[AbstractSet[int]], AbstractSet[int]] = lambda _: frozenset()
        """Return those of these local ranks that cannot continue without help."""
        self._workers = workers
        self._limits = limits
        self._hurry = limits.failure
        """Seconds from a loss to SIGKILL. A surviving worker that computes notices the loss only after its step."""
        self._patience = 0.0
        """Seconds to SIGKILL, from when the timer was last armed."""

    def begin(self, *, graceful: bool) -> None:
        """Begin a stop. How long surviving workers may take after a loss depends on the steps that they compute now."""
        self.is_graceful = graceful
        self._hurry = max(self._limits.failure, self._longest_survivor_step())

    def is_complete(self) -> bool:
        """Return whether all workers have left the group and saved; at the end of the run, whether all have exited."""
        return not (self._workers.active | self._workers.parting if self.ending is None else self._workers.alive)

    def request(self) -> list[Action]:
        """Request all workers to stop. Workers that stay for the next group only leave the current one."""
        staying = self._workers.survivors if self.ending is None else frozenset()
        actions: list[Action] = [RegroupWorkers(staying, self.is_graceful)] if staying else []
        if not staying:
            actions.append(SignalWorkers(signal.SIGTERM))
        elif going := frozenset(self._workers.active - staying):
            actions.append(SignalWorkers(signal.SIGTERM, going))
        return [*actions, self._set_kill_timer(self._limits.shutdown if self.is_graceful else self._hurry)]

    def hasten(self) -> list[Action]:
        """Shorten a graceful stop, because a peer is lost."""
        # Workers that are only saving are not stuck: a shorter limit must not interrupt their checkpoint.
        if not self.is_graceful or not self._workers.active:
            return []
        self.is_graceful = False
        survivors = self._workers.survivors
        hurry: list[Action] = [RegroupWorkers(survivors, graceful=False)] if survivors else []
        return [*hurry, self._set_kill_timer(self._hurry)]

    def terminate_survivors(self) -> list[Action]:
        """Send SIGTERM to surviving workers, which were only asked to leave their group."""
        return [SignalWorkers(signal.SIGTERM, frozenset(self._workers.able))] if self._workers.able else []

    def expire(self) -> list[Action]:
        """Kill stuck workers and give the others the rest of their time, or :meth:`kill` all when it is over."""
        if self.ending is not None:
            return self.kill()
        stuck = frozenset(self.stuck(self._workers.active))
        left = self._patience - self._limits.failure
        if not self.is_graceful:
            left = min(left, self._longest_survivor_step(besides=stuck))
        if left <= 0:
            return self.kill()
        return [*([SignalWorkers(signal.SIGKILL, stuck)] if stuck else []), self._set_kill_timer(left)]

    def kill(self) -> list[Action]:
        """Kill the workers that have not left their group or still save. Idle workers stay if the run continues."""
        has_staying = self._workers.idle and self.ending is None
        late = frozenset(self._workers.active | self._workers.parting)
        return [SignalWorkers(signal.SIGKILL, late if has_staying else None)]

    def _longest_survivor_step(self, *, besides: frozenset[int] = frozenset()) -> float:
        survivors = self._workers.survivors - besides
        return self.longest_step(survivors) if survivors else 0.0

    def _set_kill_timer(self, patience: float) -> SetTimer:
        """Give workers this many seconds to stop, and check for stuck workers on the way."""
        self._patience = patience
        return SetTimer(Timer.KILL, min(patience, self._limits.failure))
