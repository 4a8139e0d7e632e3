"""Waiting until a job has done something, or cannot do it any more.

What shows in objects is waited for by watching them. Steps and world sizes are known to the pods alone, which have no
way to call us, so those are asked twice a second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Backend, Snapshot
from kubectl_ddp.errors import Cancelled, DdpError, NotFound, TimedOut, UsageError
from kubectl_ddp.invocation import location_flags, program
from kubectl_ddp.result_annotations import persist_result
from kubectl_ddp.scrape import observe
from kubectl_ddp.state import JobState, State, failure, job_state

GOALS: Final = ("complete", "running", "failed", "suspended", "deleted", "step=N", "world-size=N")
"""What can be waited for."""

_ASK_SECONDS: Final = 0.5

_MUTE_SECONDS: Final = 5.0
"""How long pods that tell nothing are asked again, before the operator is believed that the job runs: their metrics may
be out of reach."""

_NAMED: Final = {
    "complete": State.SUCCEEDED,
    "running": State.RUNNING,
    "failed": State.FAILED,
    "suspended": State.SUSPENDED,
}
_COUNTED: Final[dict[str, Callable[[JobState], int | None]]] = {
    "step": lambda state: state.step,
    "world-size": lambda state: state.world_size,
}


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """What is waited for."""

    text: str
    """As it was given."""
    state: State | None = None
    """A state that the job enters; None with :attr:`count` and for its deletion."""
    count: int | None = None

    @property
    def needs_metrics(self) -> bool:
        """Whether only the pods know. ``running`` means that ranks train, which objects do not show."""
        return self.count is not None or self.state is State.RUNNING

    def is_met(self, state: JobState) -> bool:
        """Whether the job has done it."""
        if self.count is None:
            return self.state is not None and self._is_in(state)
        name = self.text.partition("=")[0]
        number = _COUNTED[name](state)
        if number is None:
            return False
        return number >= self.count if name == "step" else number == self.count

    def _is_in(self, state: JobState) -> bool:
        match self.state:
            case State.FAILED:
                return state.state in {State.FAILED, State.LOST}
            case State.SUSPENDED:  # and its pods have ended, which is what one waits for
                return state.state in {State.SUSPENDED, State.QUEUED} and state.nodes.ready == 0
            case State.RUNNING:  # a short job may be through before we look
                return state.state is State.SUCCEEDED or (state.state is State.RUNNING and not state.is_unresponsive)
        return state.state is self.state


DELETED: Final = WaitCondition("deleted")


def parse_wait_condition(text: str) -> WaitCondition:
    """Read ``complete``, ``step=100`` … Raises UsageError."""
    name, _, number = text.partition("=")
    if not number and name in _NAMED:
        return WaitCondition(text, _NAMED[name])
    if text == DELETED.text:
        return DELETED
    if name in _COUNTED and number.isdecimal() and int(number) > 0:
        return WaitCondition(text, count=int(number))
    raise UsageError(f"A job cannot be waited for to be '{text}'.", hint=f"Choose one of {', '.join(GOALS)}.")


def wait_for(
    backend: Backend,
    name: str,
    goal: WaitCondition,
    *,
    timeout: float | None = None,
    seen: Callable[[JobState], None] = lambda _: None,
) -> JobState:
    """Wait until a job has done something; its deletion is for :func:`wait_until_deleted`.

    Args:
        backend: where it runs.
        name: the job.
        goal: what it should do.
        timeout: most seconds to wait; None waits for as long as it takes.
        seen: told of every state on the way.

    Returns:
        The job as it then was.

    Raises:
        NotFound: there is no such job.
        TimedOut: it took longer.
        JobFailed, InfrastructureFailed: it failed instead.
        Cancelled: it was deleted or suspended instead.
    """
    last: JobState | None = None
    heard = time.monotonic()
    try:
        for snapshot in _changes(backend, name, timeout, asks=goal.needs_metrics):
            last = observe(backend, snapshot) if goal.needs_metrics else job_state(snapshot, {}, where=backend.where)
            seen(last)
            persist_result(backend, snapshot.job, last)
            heard = heard if last.is_unresponsive else time.monotonic()
            is_believed = goal.state is last.state is State.RUNNING and time.monotonic() - heard > _MUTE_SECONDS
            if goal.is_met(last) or is_believed:
                return last
            _raise_if_impossible(last, goal)
    except _TimeIsUpError as end:
        raise _timed_out(name, goal, timeout, last) from end
    raise Cancelled(f"Job '{name}' was deleted before it was {goal.text}.")


def wait_until_deleted(backend: Backend, name: str, *, timeout: float | None = None) -> None:
    """Wait until there is no such job; at once when there is none now. Raises TimedOut."""
    last: JobState | None = None
    try:
        for snapshot in _changes(backend, name, timeout, asks=False):
            last = job_state(snapshot, {}, where=backend.where)
    except NotFound:
        return
    except _TimeIsUpError as end:
        raise _timed_out(name, DELETED, timeout, last) from end


def _raise_if_impossible(state: JobState, goal: WaitCondition) -> None:
    """Whether what is waited for cannot come any more."""
    if state.state in {State.FAILED, State.LOST}:
        raise failure(state)
    if state.state is State.SUCCEEDED:
        raise DdpError(f"Job '{state.name}' succeeded before it was {goal.text}.")
    if state.state is State.SUSPENDED and goal.state not in {State.RUNNING, State.SUSPENDED}:
        raise Cancelled(
            f"Job '{state.name}' was suspended before it was {goal.text}.",
            hint=f"'{program()} resume {state.name}{location_flags()}' lets it go on.",
        )


class _TimeIsUpError(Exception):
    """The timeout is over."""


def _timed_out(name: str, goal: WaitCondition, timeout: float | None, last: JobState | None) -> TimedOut:
    now = f" It is {last.state}{_where_it_is(last)}." if last is not None else ""
    return TimedOut(
        f"Job '{name}' was not {goal.text} within {timeout or 0:g} s.{now}",
        hint=f"'{program()} status {name}{location_flags()}' says more.",
    )


def _where_it_is(state: JobState) -> str:
    if state.step is None:
        return ""
    return f" at step {state.step}" + (f" of {state.steps_planned}" if state.steps_planned else "")


def _changes(backend: Backend, name: str, timeout: float | None, *, asks: bool) -> Iterator[Snapshot]:
    """The job, whenever it changed, and from time to time if only its pods know; ends when it is deleted."""
    limit = time.monotonic() + timeout if timeout is not None else None
    arrivals: queue.SimpleQueue[Snapshot | BaseException | None] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(backend, name, arrivals), daemon=True).start()
    latest: Snapshot | None = None
    while True:
        left = limit - time.monotonic() if limit is not None else None
        if left is not None and left <= 0:
            raise _TimeIsUpError
        pause = _ASK_SECONDS if asks and latest is not None else None
        try:
            arrival = arrivals.get(timeout=min((each for each in (left, pause) if each is not None), default=None))
        except queue.Empty:
            if latest is not None and pause is not None:
                yield latest
            continue
        if isinstance(arrival, BaseException):
            raise arrival
        if arrival is None:
            return
        latest = arrival
        yield latest


def _watch(backend: Backend, name: str, arrivals: queue.SimpleQueue[Snapshot | BaseException | None]) -> None:
    try:
        for snapshot in backend.watch(name):
            arrivals.put(snapshot)
        arrivals.put(None)
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited
        arrivals.put(error)
