"""Progress of one job, shown while a command waits for it.

:meth:`ProgressDisplay.update` receives the states that :func:`kubectl_ddp.observe.waiting.wait_for` sees. If nothing
changes for 15 s, the display asks :mod:`kubectl_ddp.why` for the cause, in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final, Self

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.progress.estimates import LastProgress, StepRate
from kubectl_ddp.cli.progress.line_printers import LinePrinter
from kubectl_ddp.cli.progress.progress_line import ProgressLine, progress_line
from kubectl_ddp.errors import DdpError
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.util.finding import Finding, Severity

STANDSTILL_SECONDS: Final = 15.0
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
        self._changed = self._asks = 0.0
        """Time of the last change, and time to look for a cause."""
        self._cause: Finding | None = None
        self._is_asking = False
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
            self._changed, self._asks = now, now + STANDSTILL_SECONDS
        elif now >= self._asks and not self._is_asking:
            self._asks = now + min(now - self._changed, LONGEST_PAUSE_SECONDS)
            self._is_asking = True
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
            self._is_asking = False
        first = next((each for each in found if each.severity in {Severity.ERROR, Severity.WARNING}), None)
        is_known = self._cause is not None and first is not None and self._cause.subject == first.subject
        if self._line == line and first is not None and not is_known:
            self._cause = first
