"""Start of this worker process: the seconds of each phase from the start of the pod's launcher to the first step.

The program calls :func:`end_phase` at the end of a phase, and the recorder of metrics listens to :data:`STARTUP`.
The time of a phase that was not reported belongs to the next phase, so that the phases always add up. Standard library
only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from ddp_trainer.common.constants import Env, LifecycleEvent
from ddp_trainer.common.process_start import process_start
from ddp_trainer.common.time_classes import IN_POD, StartupPhase

_COMPILES: Final = ("entire_frame_compile", "entire_backward_compile")
"""Outermost events of torch.compile, in ``torch._dynamo.utils.cumulative_time_spent_ns``."""
_NO_WAIT_SECONDS: Final = 0.1
"""Time from the launcher to its worker in which it has waited for nothing."""


class StartupTimes:
    """Ends of the phases of one start. A phase ends once: a later group of the same process changes nothing."""

    def __init__(self, clock: Callable[[], float] = time.time, started: Callable[[], float] | None = None) -> None:
        """Create the start of this process.

        Args:
            clock: Returns Unix time.
            started: Returns the Unix time at which this process started (default: from ``/proc``).
        """
        self._clock = clock
        self._started = started or process_start
        self._ends: dict[StartupPhase, float] = {}
        self._torch_imported: float | None = None
        self.listener: Callable[[], None] = lambda: None
        """Called after each phase."""

    def end_phase(self, phase: StartupPhase, moment: float | None = None) -> None:
        """End a phase now, or at a Unix time. Only the first call for a phase has an effect."""
        if phase not in self._ends:
            self._ends[phase] = self._clock() if moment is None else moment
            if phase is not StartupPhase.INTERPRETER and self._torch_imported is not None:
                self._ends.setdefault(StartupPhase.IMPORTS, self._torch_imported)
            self.listener()

    def torch_imported(self) -> None:
        """End the imports of a program here, unless it joins a process group later."""
        self._torch_imported = self._clock()

    def finish(self, seconds: float, data_wait: float) -> None:
        """End the first step.

        Args:
            seconds: Duration of the step.
            data_wait: Part of it in which the first batch was awaited, for a program that did not report its batch.
        """
        if not self.is_over:
            now = self._clock()
            self._ends.setdefault(StartupPhase.FIRST_BATCH, now - max(0.0, seconds - data_wait))
            self.end_phase(StartupPhase.FIRST_STEP, now)

    @property
    def is_over(self) -> bool:
        """True if the first step has ended."""
        return StartupPhase.FIRST_STEP in self._ends

    def seconds(self, environ: Mapping[str, str] = os.environ) -> tuple[float, dict[StartupPhase, float]]:
        """Return the Unix time at which the launcher started, and the seconds of each phase that has ended.

        A launcher that started this process only after the group had formed spent the time before it in the rendezvous.
        If it waited for its fork server then, that wait belongs to the imports.
        """
        times, started = _launcher_times(environ), self._started()
        process = min(times.get(LifecycleEvent.IMPORTING, started), started)
        launched = min(times.get(LifecycleEvent.LAUNCHED, process), process)
        began = min(times.get(LifecycleEvent.STARTED, launched), launched)
        is_in_group = times.get(LifecycleEvent.FORMED, process + 1.0) <= process
        has_waited = is_in_group and process - launched >= _NO_WAIT_SECONDS
        waited = StartupPhase.RENDEZVOUS if has_waited else StartupPhase.INTERPRETER
        spent = {StartupPhase.INTERPRETER: launched - began}
        spent[waited] = spent.get(waited, 0.0) + process - launched
        if process < started:
            spent[StartupPhase.IMPORTS] = started - process
        last = started
        for phase in IN_POD:
            if (end := self._ends.get(phase)) is not None:
                spent[phase] = spent.get(phase, 0.0) + max(0.0, end - last)
                last = max(last, end)
        if self.is_over:
            _separate_compilation(spent)
        elif StartupPhase.FIRST_BATCH in self._ends and "torch._dynamo.utils" not in sys.modules:
            spent[StartupPhase.COMPILE] = 0.0  # nothing compiles: the first step is the next phase
        return began, dict.fromkeys(IN_POD, 0.0) | spent if self.is_over else spent


def _separate_compilation(spent: dict[StartupPhase, float]) -> None:
    """Move the seconds of torch.compile out of the first step."""
    compiled = min(compile_seconds(), spent[StartupPhase.FIRST_STEP])
    spent[StartupPhase.FIRST_STEP] -= compiled
    spent[StartupPhase.COMPILE] = compiled


def compile_seconds() -> float:
    """Return the seconds that torch.compile has taken in this process; 0 if this torch does not count them."""
    counted = getattr(sys.modules.get("torch._dynamo.utils"), "cumulative_time_spent_ns", None)
    return sum(counted.get(name, 0.0) for name in _COMPILES) / 1e9 if isinstance(counted, dict) else 0.0


def _launcher_times(environ: Mapping[str, str]) -> Mapping[str, float]:
    try:
        times = json.loads(environ.get(Env.MOMENTS, "") or "{}")
    except ValueError:
        return {}
    found = times.items() if isinstance(times, dict) else ()
    return {name: float(moment) for name, moment in found if isinstance(moment, int | float)}


STARTUP: Final = StartupTimes()
"""Start of this process."""

end_phase: Final = STARTUP.end_phase
