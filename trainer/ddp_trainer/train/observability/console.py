"""Progress output of a run: a live line on a terminal, plain lines in a log, or JSON lines on request.

:class:`Progress` writes events, such as :class:`StepCommitted`, to a text stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TextIO


class Mode(StrEnum):
    """Form of the progress output."""

    LIVE = "live"
    PLAIN = "plain"
    JSON = "json"
    SILENT = "silent"
    """Alarms only; on every rank except the first."""


class Event(Protocol):
    """Event that the progress output shows."""

    name: ClassVar[str]

    def message(self) -> str:
        """Return the event as one line of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Training starts. Contains the values derived from flags and environment."""

    name: ClassVar[str] = "started"
    task: str
    world_size: int
    backend: str
    device: str
    batch_slices: int
    global_batch: int
    per_rank: str
    """Samples of each rank in a full step, such as ``16`` or ``10-11``."""
    samples: int
    steps_per_epoch: int
    steps: int
    resumed_step: int
    weights: int = 0
    flops_per_sample: int | None = None
    """Floating-point operations of forward and backward; None if the model does not provide them."""

    def message(self) -> str:
        """Return the event as one line of text."""
        ranks = f"{self.world_size} ranks ({self.backend})" if self.world_size > 1 else "1 rank"
        start = f"resumed after step {self.resumed_step}" if self.resumed_step else "from the start"
        flops = "" if self.flops_per_sample is None else f" ({self.flops_per_sample / 1e9:,.3g} GFLOP a sample)"
        return (
            f"{self.task}, {self.weights:,} weights{flops}, on {ranks}, {self.device}: "
            f"{self.samples} samples, {self.steps_per_epoch} steps per epoch, "
            f"{self.steps} steps; global batch {self.global_batch} in {self.batch_slices} slices, "
            f"{self.per_rank} samples per rank; {start}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """Commit of a step."""

    name: ClassVar[str] = "step"
    step: int
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    samples_per_second: float
    eta_seconds: float

    def message(self) -> str:
        """Return the event as one line of text."""
        return (
            f"step {self.step}/{self.steps}  epoch {self.epoch}  loss {self.loss:.4f}  lr {self.learning_rate:.2e}  "
            f"{self.samples_per_second:,.0f} samples/s  ETA {clock_time(self.eta_seconds)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCompleted:
    """Evaluation of the test samples."""

    name: ClassVar[str] = "evaluated"
    epoch: int
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def message(self) -> str:
        """Return the event as one line of text."""
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"epoch {self.epoch} evaluated  {metrics}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRebalanced:
    """Reassignment of batch slices because some ranks are slower."""

    name: ClassVar[str] = "balanced"
    batch_slices: Sequence[int]
    """Number of batch slices of each rank, from the next step on."""

    def message(self) -> str:
        """Return the event as one line of text."""
        return f"Balanced: the ranks now own {', '.join(map(str, self.batch_slices))} batch slices."


@dataclass(frozen=True, slots=True)
class RunCompleted:
    """End of the run."""

    name: ClassVar[str] = "summary"
    summary: Mapping[str, Any]

    def message(self) -> str:
        """Return the summary as JSON, as the command prints it."""
        return json.dumps(self.summary)


@dataclass(frozen=True, slots=True)
class Notice:
    """Message that the reader may have to act on."""

    name: ClassVar[str] = "note"
    text: str
    alarm: bool = False
    """The message concerns this rank and not the run, and is shown on every rank."""

    def message(self) -> str:
        """Return the event as one line of text."""
        return self.text


class Progress:
    """Writes events to one text stream."""

    def __init__(self, mode: Mode, stream: TextIO) -> None:
        self.mode = mode
        self._stream = stream
        self._line_open = False

    def show(self, mode: Mode, stream: TextIO) -> None:
        """Change mode and stream. Another rank may be the first one of the next group."""
        if mode is not self.mode:
            self._end_line()
            self.mode, self._stream = mode, stream

    def show_event(self, event: Event) -> None:
        """Show an event. A silent rank shows alarms only."""
        if self.mode is Mode.JSON:
            # asdict takes a dataclass instance, and every event is one.
            self._write(json.dumps({"event": event.name, **asdict(event)}) + "\n")  # type: ignore[call-overload]
        elif self.mode is Mode.LIVE and isinstance(event, StepCommitted):
            self._write(f"\r\x1b[2K{event.message()}")
            self._line_open = True
        elif self.mode is not Mode.SILENT or (isinstance(event, Notice) and event.alarm):
            self._end_line()
            self._write(f"{event.message()}\n")

    def log_message(self, text: str) -> None:
        """Show a message about the run."""
        self.show_event(Notice(text))

    def warn_rank(self, text: str) -> None:
        """Show a message about this rank, on any rank."""
        self.show_event(Notice(text, alarm=True))

    def close(self) -> None:
        """End an open live line, so that the cursor is on a new line."""
        self._end_line()

    def _end_line(self) -> None:
        if self._line_open:
            self._write("\n")
            self._line_open = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The stream is closed, such as a broken pipe. Training continues without output.
            self.mode = Mode.SILENT


def clock_time(seconds: float) -> str:
    """Return a duration in clock format.

    >>> clock_time(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
