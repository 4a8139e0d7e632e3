"""Text of the progress of a job: one line for each state, and one for its end. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.common.time_classes import StartupPhase
from kubectl_ddp.status.describe import progress_text, restarts_text, summary_text
from kubectl_ddp.status.job_state import JobState, State
from kubectl_ddp.util.text_table import duration, pluralize

_RESULT: Final = frozenset({"accuracy", "steps", "restarts", "samples_lost"})
"""Keys of a summary that the line of the end shows."""

_BEFORE_GROUP: Final = frozenset({StartupPhase.INTERPRETER, StartupPhase.IMPORTS})
_GROUP_SECONDS: Final = 30.0
"""Seconds in these phases after which a program counts as one that joins no process group, and so has no first step."""


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """What a job does now."""

    job: str
    phase: str
    """Phase, such as ``queued`` or ``training``."""
    text: str
    cause: str = ""
    """Cause of a standstill, as ``why`` names it."""

    def __str__(self) -> str:
        """Return the line as shown."""
        return " ".join(f"{self.job}: {self.text}{f'. {self.cause}' if self.cause else ''}".split())


def progress_line(state: JobState, now: float) -> ProgressLine:
    """Return the line of a job that has not ended, at a Unix time."""
    phase, text = _running(state, now) if state.state is State.RUNNING else _PHASES[state.state](state)
    return ProgressLine(state.name, phase, text)


def end_line(state: JobState, now: float) -> str:
    """Return the line of a job that has ended: duration, steps, restarts, lost samples.

    Args:
        state: State of the job.
        now: Unix time, for a job without an end time.
    """
    has_succeeded = state.state is State.SUCCEEDED
    is_partial = not has_succeeded and state.step is not None and state.steps_planned is not None
    restarts = None if state.uses_torchrun else state.restarts
    parts = (
        f"{state.step} of {state.steps_planned} steps" if is_partial else "",
        summary_text(
            {"steps": state.step, "restarts": restarts} | (state.summary or {}),
            _RESULT - {"steps"} if is_partial else _RESULT,
        ),
    )
    word = "succeeded in" if has_succeeded else "failed after"
    rest = ", ".join(filter(None, parts))
    return f"Job {state.name} {word} {duration(state.duration(now))}{rest and f': {rest}'}."


def start_line(state: JobState, seconds: float) -> str:
    """Return the line of a job whose ranks train: the time that took, ranks, progress.

    Args:
        state: State of the job.
        seconds: Seconds since the command that started it.
    """
    ranks = pluralize(state.world_size, "rank") if state.world_size is not None else ""
    text = ", ".join(filter(None, (ranks, progress_text(replace(state, eta_seconds=None)))))
    return f"Job {state.name} runs after {duration(seconds)}{f': {text}' if text else ''}."


def _queued(state: JobState) -> tuple[str, str]:
    queue = state.queue
    if queue is None or queue.position is None:
        return "queued", f"queued{f' in {queue.name}' if queue else ''}"
    before = queue.position - 1
    after = f"{pluralize(before, 'job')} before it" if before else "the next"
    return "queued", f"queued in {queue.name} as number {queue.position}, {after}"


def _starting(state: JobState) -> tuple[str, str]:
    phase = state.startup.current if state.startup is not None else None
    if phase is None:  # its first start is over or unknown, and this is a later one
        phase = StartupPhase.RENDEZVOUS if state.state is State.STARTING else StartupPhase.QUEUE
    elif phase is StartupPhase.INTERPRETER and state.world_size is not None:
        phase = StartupPhase.IMPORTS  # the workers run, and report the two together
    size = state.startup.image_bytes if state.startup is not None and phase is StartupPhase.PULL else None
    parts = (_PHASE_TEXTS[phase], _ready(state), f"{_format_bytes(size)} each" if size is not None else "")
    return phase, ", ".join(filter(None, parts))


def _running(state: JobState, now: float) -> tuple[str, str]:
    startup = state.startup
    if state.step is None and startup is not None and startup.current is not None:
        is_without_group = startup.current in _BEFORE_GROUP and now - startup.since > _GROUP_SECONDS
        if not is_without_group:
            return _starting(state)
    missing = _ready(state) or _ranks(state) if state.progress != 1.0 else ""  # pods that are done are not ready
    if state.step is None:
        return "running", ", ".join(filter(None, ("running", missing)))
    return "training", ", ".join(filter(None, (progress_text(state), missing)))


def _restarting(state: JobState) -> tuple[str, str]:
    parts = (
        "re-forming the worker group",
        f"restarts: {restarts_text(state)}" if state.restarts else "",
        _ready(state),
    )
    return "restarting", ", ".join(filter(None, parts))


def _suspended(state: JobState) -> tuple[str, str]:
    return "suspended", f"stopping, {pluralize(state.nodes.ready, 'pod')} left" if state.nodes.ready else "suspended"


def _ready(state: JobState) -> str:
    """Return how many pods are ready; empty if all are."""
    ready, desired = state.nodes.ready, state.nodes.desired
    return f"{ready} of {pluralize(desired, 'pod')} ready" if ready < desired else ""


def _ranks(state: JobState) -> str:
    """Return how many ranks train; empty if all do, or if it is unknown."""
    wanted = state.nodes.training * state.processes_per_node
    is_partial = state.world_size is not None and state.world_size < wanted
    return f"{state.world_size} of {pluralize(wanted, 'rank')} train" if is_partial else ""


_PHASE_TEXTS: Final[Mapping[StartupPhase, str]] = {
    StartupPhase.QUEUE: "waiting for its pods",
    StartupPhase.SCHEDULE: "scheduling",
    StartupPhase.PULL: "pulling the image",
    StartupPhase.CONTAINER: "starting containers",
    StartupPhase.INTERPRETER: "starting Python",
    StartupPhase.IMPORTS: "importing",
    StartupPhase.RENDEZVOUS: "rendezvous",
    StartupPhase.FIRST_BATCH: "preparing the first batch",
    StartupPhase.COMPILE: "compiling",
    StartupPhase.FIRST_STEP: "first step",
}

_PHASES: Final[Mapping[State, Callable[[JobState], tuple[str, str]]]] = {
    State.QUEUED: _queued,
    State.PENDING: _starting,
    State.STARTING: _starting,
    State.RESTARTING: _restarting,
    State.SUSPENDED: _suspended,
    State.DELETING: lambda _: ("deleting", "being deleted"),
}
"""State → function that returns phase and text, of a job that neither runs nor has ended."""


def _format_bytes(size: float) -> str:
    """Format the size of an image.

    >>> _format_bytes(8 * 2**30), _format_bytes(2**29)
    ('8.0 GiB', '0.50 GiB')
    """
    amount = size / 2**30
    return f"{amount:.1f} GiB" if amount >= 1 else f"{amount:.2f} GiB"
