"""What a person sees while the run goes on: a live line on a terminal, plain lines in a log, JSON lines on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TextIO

_LIVE_SECONDS = 0.1


class Mode(StrEnum):
    """How progress is shown."""

    LIVE = "live"
    PLAIN = "plain"
    JSON = "json"
    SILENT = "silent"
    """Every rank but the first."""


class Event(Protocol):
    """Something worth telling."""

    name: ClassVar[str]

    def sentence(self) -> str:
        """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Training begins; tells what was derived from the flags and the surroundings."""

    name: ClassVar[str] = "started"
    task: str
    world_size: int
    backend: str
    device: str
    shards: int
    global_batch: int
    per_rank: str
    """Samples of a full step for each rank, ``16`` or ``10-11``."""
    samples: int
    steps_per_epoch: int
    steps: int
    resumed_step: int
    weights: int = 0
    flops_per_sample: int | None = None
    """Forward and backward, of a model that knows."""

    def sentence(self) -> str:
        """In words."""
        ranks = f"{self.world_size} ranks ({self.backend})" if self.world_size > 1 else "1 rank"
        start = f"resumed after step {self.resumed_step}" if self.resumed_step else "from the start"
        flops = "" if self.flops_per_sample is None else f" ({self.flops_per_sample / 1e9:,.3g} GFLOP a sample)"
        return (
            f"{self.task}, {self.weights:,} weights{flops}, on {ranks}, {self.device}: "
            f"{self.samples} samples, {self.steps_per_epoch} steps per epoch, "
            f"{self.steps} steps; global batch {self.global_batch} in {self.shards} shards, "
            f"{self.per_rank} samples per rank; {start}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A step was committed."""

    name: ClassVar[str] = "step"
    step: int
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    samples_per_second: float
    eta_seconds: float

    def sentence(self) -> str:
        """In words."""
        return (
            f"step {self.step}/{self.steps}  epoch {self.epoch}  loss {self.loss:.4f}  lr {self.learning_rate:.2e}  "
            f"{self.samples_per_second:,.0f} samples/s  ETA {clock_time(self.eta_seconds)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The test samples were evaluated."""

    name: ClassVar[str] = "evaluated"
    epoch: int
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def sentence(self) -> str:
        """In words."""
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"epoch {self.epoch} evaluated  {metrics}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """Logical shards were given to other ranks, because some are slower."""

    name: ClassVar[str] = "balanced"
    shards: Sequence[int]
    """Of each rank, from the next step on."""

    def sentence(self) -> str:
        """In words."""
        return f"Balanced: the ranks now own {', '.join(map(str, self.shards))} shards."


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over."""

    name: ClassVar[str] = "summary"
    summary: Mapping[str, Any]

    def sentence(self) -> str:
        """As the command prints it."""
        return json.dumps(self.summary)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the reader should know, and may have to act on."""

    name: ClassVar[str] = "note"
    text: str
    alarm: bool = False
    """Of this rank, and not of the run: shown on every rank."""

    def sentence(self) -> str:
        """In words."""
        return self.text


class Progress:
    """Writes events to one stream, and steps no more often than a reader wants."""

    def __init__(
        self,
        mode: Mode,
        stream: TextIO,
        clock: Callable[[], float],
        *,
        every_seconds: float,
        every_steps: int | None,
    ) -> None:
        self._mode = mode
        self._stream = stream
        self._clock = clock
        self._every_steps = every_steps
        self._seconds = every_seconds
        self._begun = self._printed = clock()
        self._first_step = 0
        self._samples = 0
        self._line_open = False

    def show(self, mode: Mode, stream: TextIO) -> None:
        """From now on in this way: another rank may be the first one of the next group."""
        if mode is not self._mode:
            self._end_line()
            self._mode, self._stream = mode, stream

    def begin(self, step: int) -> None:
        """Training begins after this many steps; rates and times count from here."""
        self._begun = self._printed = self._clock()
        self._first_step = step

    def step(self, *, step: int, steps: int, epoch: int, samples: int, loss: float, learning_rate: float) -> None:
        """A step was committed: ``step`` of ``steps``, with this many samples over all ranks."""
        self._samples += samples
        if self._mode is Mode.SILENT or not self._due(step):
            return
        now = self._clock()
        per_step = (now - self._begun) / max(step - self._first_step, 1)
        self.tell(
            Stepped(
                step=step,
                steps=steps,
                epoch=epoch,
                loss=loss,
                learning_rate=learning_rate,
                samples_per_second=self._samples / max(now - self._printed, 1e-9),
                eta_seconds=per_step * (steps - step),
            ),
        )
        self._samples = 0
        self._printed = now

    def _due(self, step: int) -> bool:
        if self._every_steps is not None and self._mode is not Mode.LIVE:
            return step % self._every_steps == 0
        return self._clock() - self._printed >= (_LIVE_SECONDS if self._mode is Mode.LIVE else self._seconds)

    def tell(self, event: Event) -> None:
        """Show an event; on a silent rank, alarms alone."""
        if self._mode is Mode.JSON:
            # asdict wants a dataclass instance, and every event is one.
            self._write(json.dumps({"event": event.name, **asdict(event)}) + "\n")  # type: ignore[call-overload]
        elif self._mode is Mode.LIVE and isinstance(event, Stepped):
            self._write(f"\r\x1b[2K{event.sentence()}")
            self._line_open = True
        elif self._mode is not Mode.SILENT or (isinstance(event, Note) and event.alarm):
            self._end_line()
            self._write(f"{event.sentence()}\n")

    def note(self, text: str) -> None:
        """Show a sentence about the run."""
        self.tell(Note(text))

    def alarm(self, text: str) -> None:
        """Show a sentence about this rank, on whichever it is."""
        self.tell(Note(text, alarm=True))

    def close(self) -> None:
        """Leave the cursor on a line of its own."""
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
            # The reader has gone away (a closed pipe); training does not end for that.
            self._mode = Mode.SILENT


def clock_time(seconds: float) -> str:
    """Duration as a clock shows it.

    >>> clock_time(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
