"""Progress of one job, shown while a command waits for it, in the form that the flags and the terminal allow.

:class:`RewrittenLine` rewrites one line in place on a terminal, :class:`PlainLines` prints lines in a pipe. Pure
functions write the text: one line for each state, and one for the end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self, TextIO

from ddp_trainer.common.safe_text import escape_control_chars
from ddp_trainer.common.time_classes import StartupPhase
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.errors import DdpError
from kubectl_ddp.status.describe import progress_text, restarts_text, summary_text
from kubectl_ddp.status.job_state import JobState, State
from kubectl_ddp.util.finding import Finding, Severity
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import duration, pluralize, raw

_RESULT: Final = frozenset({"accuracy", "steps", "restarts", "samples_lost"})
"""Keys of a summary that the line of the end shows."""

_BEFORE_GROUP: Final = frozenset({StartupPhase.INTERPRETER, StartupPhase.IMPORTS})
_GROUP_SECONDS: Final = 30.0
"""Seconds in these phases after which a program counts as one that joins no process group, and so has no first step."""


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """Current phase and progress of a job."""

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


WINDOW_SECONDS: Final = 60.0
"""Length of the time over which steps are counted."""
LEAST_SECONDS: Final = 5.0
"""Minimum length of that time. Before, the step time that the ranks report is used."""


class StepRate:
    """Rate of committed steps over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._group: int | None = None
        self._eta: float | None = None

    def eta_seconds(self, state: JobState, now: float) -> float | None:
        """Return the remaining seconds; None if steps or their planned number are unknown.

        The estimate changes only with the step.

        Args:
            state: Current state of the job.
            now: Time of a monotonic clock, in seconds.
        """
        if state.step is None or not state.steps_planned:
            return None
        if self._group != state.generation or (self._seen and state.step < self._seen[-1][1]):
            self._seen.clear()  # another group has another pace, and may repeat steps
        self._group = state.generation
        if self._seen and state.step == self._seen[-1][1]:
            return self._eta
        self._seen.append((now, state.step))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        self._eta = self._estimate(state, state.steps_planned - state.step)
        return self._eta

    def _estimate(self, state: JobState, left: int) -> float | None:
        (first, low), (last, high) = self._seen[0], self._seen[-1]
        if last - first < LEAST_SECONDS:
            return state.eta_seconds
        return max(0, left) * (last - first) / (high - low)


class LastProgress:
    """Fills gaps in the metrics of a running job: pods that end stop answering before the job has ended."""

    def __init__(self) -> None:
        self._last: JobState | None = None

    def fill(self, state: JobState) -> JobState:
        """Return the state, or the last one with its progress if this one has less; its nodes are the current ones."""
        if state.state is not State.RUNNING:
            self._last = None
        elif self._last is not None and _known(state) < _known(self._last):
            return replace(self._last, nodes=state.nodes)
        else:
            self._last = state
        return state


def _known(state: JobState) -> int:
    """Return how many values of the progress are known."""
    return sum(value is not None for value in (state.world_size, state.step, state.steps_planned))


QUIET_SECONDS: Final = 1.0
"""Seconds without log lines after which the erased line returns."""

SHORTEST_SECONDS: Final = 10.0
"""Minimum seconds between plain lines of one phase."""
LONGEST_SECONDS: Final = 300.0
"""Maximum of that time. Some CI systems end a command that prints nothing for ten minutes."""
SHARE: Final = 0.1
"""Share of the time so far for which a plain line is enough. A day of training takes some 300 lines."""

_ERASE: Final = "\r\033[K"
_NO_WRAP, _WRAP = "\033[?7l", "\033[?7h"


class LinePrinter(Protocol):
    """Place where the progress is shown."""

    def show(self, line: ProgressLine) -> None:
        """Show the line, unless it is shown already."""

    def paused(self) -> AbstractContextManager[None]:
        """Make room for other output inside the block."""

    def close(self) -> None:
        """Remove what is not to stay. Nothing is shown afterwards."""


class RewrittenLine:
    """The last line of a terminal, rewritten in place and cut to its width. Its methods may be called by any thread."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a line.

        Args:
            stream: Stream of the terminal, without escaping.
            clock: Source of monotonic time.
        """
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._shown = ""
        self._quiet_from = 0.0
        self._is_closed = False

    def show(self, line: ProgressLine) -> None:
        """Replace the line, unless other output was printed within the last second.

        The width is read each time, so a resized window gets a line of its new width.
        """
        text = escape_control_chars(str(line))[: max(0, self._width() - 1)]
        with self._lock:
            if self._is_closed or text == self._shown or self._clock() < self._quiet_from:
                return
            self._shown = text
            # Without wrapping, a character of two columns cannot push the end of the line into the next one.
            self._write(f"{_NO_WRAP}{_ERASE}{text}{_WRAP}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Erase the line before other output. It returns once no such output has followed for a second."""
        with self._lock:
            self._erase()
            yield
            self._quiet_from = self._clock() + QUIET_SECONDS

    def close(self) -> None:
        """Erase the line for good."""
        with self._lock:
            self._erase()
            self._is_closed = True

    def _erase(self) -> None:
        if self._shown:
            self._write(_ERASE)
        self._shown = ""

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


class PlainLines:
    """One line per phase and per new cause, and further lines of the same phase at growing intervals."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Create a printer.

        Args:
            write: Function that prints a line.
            clock: Source of monotonic time.
        """
        self._write_line = write
        self._clock = clock
        self._last: ProgressLine | None = None
        self._begun = self._printed = clock()
        self._is_closed = False

    def show(self, line: ProgressLine) -> None:
        """Print the line if its phase or cause is new, or if it differs and the last line is old enough."""
        last, now = self._last, self._clock()
        if self._is_closed or line == last:
            return
        is_news = last is None or (line.phase, line.cause) != (last.phase, last.cause)
        age = min(max(SHORTEST_SECONDS, SHARE * (now - self._begun)), LONGEST_SECONDS)
        if is_news or now - self._printed >= age:
            self._last, self._printed = line, now
            self._write_line(str(line))

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing: whole lines leave room for other lines."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Print nothing from now on."""
        self._is_closed = True


STALL_SECONDS: Final = 15.0
"""Seconds without a change after which the cause is looked for."""
LONGEST_PAUSE_SECONDS: Final = 600.0
"""Maximum time until the cause of the same standstill is looked for again. The time doubles up to it."""


class ProgressDisplay:
    """Shows the states of a job. Use it as a context manager: the line is removed at the end."""

    def __init__(
        self, backend: Backend, printer: LinePrinter | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a display.

        Args:
            backend: Place where the job runs.
            printer: Output of the lines; None to show nothing.
            clock: Source of monotonic time.
        """
        self._backend, self._printer, self._clock = backend, printer, clock
        self._progress, self._pace = LastProgress(), StepRate()
        self._line: ProgressLine | None = None
        """Current line, without its cause and estimates."""
        self._changed = self._next_diagnosis = 0.0
        """Time of the last change, and time to look for a cause."""
        self._cause: Finding | None = None
        self._is_diagnosing = False
        self.last: JobState | None = None
        """Last state that was seen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._printer is not None:
            self._printer.close()

    @property
    def seen(self) -> Callable[[JobState], None] | None:
        """Function that receives the states; None if nothing is shown, and states need no metrics."""
        return self.update if self._printer is not None else None

    def paused(self) -> AbstractContextManager[None]:
        """Make room for other output inside the block."""
        return self._printer.paused() if self._printer is not None else nullcontext()

    def update(self, state: JobState) -> None:
        """Show a state."""
        self.last = state
        if state.is_terminal or self._printer is None:
            return
        now, state = self._clock(), self._progress.fill(state)
        line = progress_line(replace(state, eta_seconds=None), time.time())
        if line != self._line:
            self._line, self._cause = line, None
            self._changed, self._next_diagnosis = now, now + STALL_SECONDS
        elif now >= self._next_diagnosis and not self._is_diagnosing:
            self._next_diagnosis = now + min(now - self._changed, LONGEST_PAUSE_SECONDS)
            self._is_diagnosing = True
            threading.Thread(target=self._find_cause, args=(state.name, line), name="standstill", daemon=True).start()
        shown = progress_line(replace(state, eta_seconds=self._pace.eta_seconds(state, now)), time.time())
        self._printer.show(replace(shown, cause=self._cause.message if self._cause else ""))

    def _find_cause(self, name: str, line: ProgressLine) -> None:
        """Look for the cause of a standstill. It is dropped if the line has changed meanwhile, or if it is known: its
        message may count seconds.
        """
        from kubectl_ddp.why.diagnosis import gather, run_checks  # noqa: PLC0415

        try:
            found = run_checks(gather(self._backend, name))
        except DdpError:  # denied, or the API server does not answer: the next attempt may succeed
            found = ()
        finally:
            self._is_diagnosing = False
        first = next((finding for finding in found if finding.severity in {Severity.ERROR, Severity.WARNING}), None)
        is_known = self._cause is not None and first is not None and self._cause.subject == first.subject
        if self._line == line and first is not None and not is_known:
            self._cause = first


def show_progress(backend: Backend, options: Options, *, logs: TextIO | None = None) -> ProgressDisplay:
    """Return a display for the job that a command waits for.

    Args:
        backend: Place where the job runs.
        options: Shared flags.
        logs: Stream to which the command prints logs meanwhile.
    """
    return ProgressDisplay(backend, line_printer(options, logs, os.environ))


def line_printer(options: Options, logs: TextIO | None, environ: Mapping[str, str]) -> LinePrinter | None:
    """Return the form of the progress: a rewritten line on a capable terminal, plain lines elsewhere, or None.

    A program that reads ``-o`` gets no plain lines, since it may read the errors on stderr, too.
    """
    if options.quiet or sys.stderr is None:
        return None
    # Logs in a pipe may come back to the same terminal, as through tee, where they would be mixed with the line.
    is_terminal = sys.stderr.isatty() and (logs is None or logs.isatty())
    if is_terminal and environ.get("TERM", "dumb") != "dumb":
        return RewrittenLine(raw(sys.stderr))
    return PlainLines(options.print_message) if options.output is None else None


def print_start(state: JobState, seconds: float, options: Options) -> None:
    """Print that a job runs ``seconds`` after a change, with the command that shows more. It may have ended already."""
    if state.is_terminal:
        print_end(state, options)
    else:
        options.print_message(f"{start_line(state, seconds)} Follow it with '{_command('logs -f', state)}'.")


def print_end(state: JobState, options: Options) -> None:
    """Print the summary of a job that has ended, with the command that shows more; errors have their own."""
    is_fine = state.state is State.SUCCEEDED
    more = f" See it with '{_command('report', state)}'." if is_fine else ""
    options.print_message(f"{end_line(state, time.time())}{more}")


def _command(words: str, state: JobState) -> str:
    command, *flags = words.split()
    return " ".join([program(), command, state.name, *flags]) + location_flags()
