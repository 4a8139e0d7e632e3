"""Waiting until a job meets a condition, or can no longer meet it.

Conditions on objects are watched. Steps and world sizes are only in the metrics of the pods, which are scraped twice a
second. A display of the states on the way gets those of :mod:`kubectl_ddp.observe.scrape`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import Cancelled, DdpError, NotFound, TimedOut, UsageError
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.observe.scrape import SCRAPE_SECONDS, LiveState, observe
from kubectl_ddp.status.job_state import JobState, State, failure, job_state
from kubectl_ddp.status.startup import EVENT_REASONS
from kubectl_ddp.util.concurrency import THREAD_END_SECONDS, Stop, feed
from kubectl_ddp.util.process import location_flags, program

GOALS: Final = ("complete", "running", "failed", "suspended", "deleted", "step=N", "world-size=N")
"""Conditions that can be waited for."""

_ASK_SECONDS: Final = 0.5
"""Time between two scrapes for a condition on metrics."""

_MUTE_SECONDS: Final = 5.0
"""Seconds to wait for metrics of running pods, before the operator's condition Running is accepted: the metrics may be
unreachable.
"""

_NAMED: Final = {
    "complete": State.SUCCEEDED,
    "running": State.RUNNING,
    "failed": State.FAILED,
    "suspended": State.SUSPENDED,
}
_KUBECTL_WORDS: Final = {f"condition={name}": name for name in _NAMED} | {"delete": "deleted"}
"""Condition of ``kubectl wait``, in lower case → ours."""
_COUNTED: Final[dict[str, Callable[[JobState], int | None]]] = {
    "step": lambda state: state.step,
    "world-size": lambda state: state.world_size,
}


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """Condition to wait for."""

    text: str
    """Text of the condition, as given by the user."""
    state: State | None = None
    """State to reach; None with :attr:`count` and for the deletion."""
    count: int | None = None

    @property
    def needs_metrics(self) -> bool:
        """True if the condition depends on metrics. ``running`` means that ranks train, which objects do not show."""
        return self.count is not None or self.state is State.RUNNING

    def is_met(self, state: JobState) -> bool:
        """Return whether the job meets the condition."""
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
            case State.SUSPENDED:  # after its pods have ended
                return state.state in {State.SUSPENDED, State.QUEUED} and state.nodes.ready == 0
            case State.RUNNING:  # a short job may end between two looks
                return state.state is State.SUCCEEDED or (state.state is State.RUNNING and not state.is_unresponsive)
        return state.state is self.state


DELETED: Final = WaitCondition("deleted")


def parse_wait_condition(text: str) -> WaitCondition:
    """Parse a condition such as ``complete`` or ``step=100``. Raises UsageError.

    kubectl's ``condition=Complete`` and ``delete`` are accepted.
    """
    text = _KUBECTL_WORDS.get(text.lower(), text)
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
    seen: Callable[[JobState], None] | None = None,
) -> JobState:
    """Wait until a job meets a condition. For its deletion, use :func:`wait_until_deleted`.

    Args:
        backend: Place where the job runs.
        name: Name of the job.
        goal: Condition to wait for.
        timeout: Maximum time to wait, in seconds (default: unlimited).
        seen: Called with every state on the way, and at least every second or so, for a display.

    Returns:
        The state of the job that met the condition.

    Raises:
        NotFound: If the job does not exist.
        TimedOut: If the timeout has passed.
        JobFailed: If the code of the job failed instead.
        InfrastructureFailed: If the infrastructure failed instead.
        Cancelled: If the job was deleted or suspended instead.
    """
    last: JobState | None = None
    answered_at = time.monotonic()
    pause = _ASK_SECONDS if goal.needs_metrics else SCRAPE_SECONDS if seen is not None else None
    read_state = _state_reader(backend, goal, seen)
    try:
        with contextlib.closing(_changes(backend, name, timeout, pause)) as changes:
            for snapshot in changes:
                last = read_state(snapshot)
                persist_result(backend, snapshot.job, last)
                answered_at = answered_at if last.is_unresponsive else time.monotonic()
                is_believed = (
                    goal.state is last.state is State.RUNNING and time.monotonic() - answered_at > _MUTE_SECONDS
                )
                if goal.is_met(last) or is_believed:
                    return last
                _raise_if_impossible(last, goal)
    except _TimeIsUpError as end:
        raise _timed_out(name, goal, timeout, last) from end
    raise Cancelled(f"Job '{name}' was deleted before it was {goal.text}.")


def _state_reader(
    backend: Backend, goal: WaitCondition, seen: Callable[[JobState], None] | None
) -> Callable[[Snapshot], JobState]:
    """Return the function from a snapshot to the state that ``goal`` needs. It calls ``seen`` with that state."""
    live = LiveState(backend)

    def read_state(snapshot: Snapshot) -> JobState:
        if goal.needs_metrics:
            state = observe(backend, snapshot)
            state = state if seen is None else live.with_position(state)
        elif seen is not None:
            state = live.of(snapshot)
        else:
            state = job_state(snapshot, {}, where=backend.where)
        if seen is not None:
            seen(state)
        return state

    return read_state


def wait_until_deleted(backend: Backend, name: str, *, timeout: float | None = None) -> None:
    """Wait until the job does not exist. Returns immediately if it does not exist now. Raises TimedOut."""
    last: JobState | None = None
    try:
        for snapshot in _changes(backend, name, timeout, None):
            last = job_state(snapshot, {}, where=backend.where)
    except NotFound:
        return
    except _TimeIsUpError as end:
        raise _timed_out(name, DELETED, timeout, last) from end


def _raise_if_impossible(state: JobState, goal: WaitCondition) -> None:
    """Raise an error if the job can no longer meet the condition."""
    if state.state in {State.FAILED, State.LOST}:
        raise failure(state)
    if state.state is State.SUCCEEDED:
        raise DdpError(f"Job '{state.name}' succeeded before it was {goal.text}.")
    if state.state is State.SUSPENDED and goal.state not in {State.RUNNING, State.SUSPENDED}:
        raise Cancelled(
            f"Job '{state.name}' was suspended before it was {goal.text}.",
            hint=f"Resume it with '{program()} resume {state.name}{location_flags()}'.",
        )


class _TimeIsUpError(Exception):
    """The timeout has passed."""


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


def _changes(backend: Backend, name: str, timeout: float | None, pause: float | None) -> Generator[Snapshot]:
    """Yield the job after each change, and after ``pause`` seconds without one. Ends when the job is deleted."""
    limit = time.monotonic() + timeout if timeout is not None else None
    arrivals: queue.Queue[Snapshot | BaseException | None] = queue.Queue()
    stop = Stop()
    snapshots = backend.watch(name, reasons=EVENT_REASONS, stop=stop)
    watcher = threading.Thread(target=feed, args=(snapshots, arrivals), daemon=True)
    watcher.start()
    try:
        yield from _receive_snapshots(arrivals, limit, pause)
    finally:
        stop.request()
        watcher.join(THREAD_END_SECONDS)


def _receive_snapshots(
    arrivals: queue.Queue[Snapshot | BaseException | None], limit: float | None, pause: float | None
) -> Iterator[Snapshot]:
    latest: Snapshot | None = None
    while True:
        left = limit - time.monotonic() if limit is not None else None
        if left is not None and left <= 0:
            raise _TimeIsUpError
        rest = pause if latest is not None else None
        try:
            arrival = arrivals.get(
                timeout=min((seconds for seconds in (left, rest) if seconds is not None), default=None)
            )
        except queue.Empty:
            if latest is not None and rest is not None:
                yield latest
            continue
        if isinstance(arrival, BaseException):
            raise arrival
        if arrival is None:
            return
        latest = arrival
        yield latest
