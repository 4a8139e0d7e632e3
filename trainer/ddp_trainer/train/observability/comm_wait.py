"""How long a rank that holds a part of a model waits for the others in a step, and for what.

Measured where the training thread itself stands still: in the collectives of ``fully_shard``, in the transfers of a
pipeline's schedule, and in what stages do together before and after it. That is so on the CPU, where gloo's collectives
return when they are done. On a GPU they are handed over like any other work, and the host's clock knows nothing of what
the device waits for. Stages let their stream wait in the same places, so that it can be marked before and after.
``fully_shard`` does so deep inside of torch, where nobody is let in: of it nothing is told there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ddp_trainer.common.constants import Wait
from ddp_trainer.train.observability.step_timer import StepTimer


class CommWaits:
    """A stopwatch for waiting: what it measures belongs to no other part of the step."""

    def __init__(self, phases: StepTimer | None = None) -> None:
        """Nothing is measured where nobody asks."""
        self._phases = phases
        self._ended = 0.0

    @contextmanager
    def during(self, wait: Wait) -> Iterator[None]:
        """This rank waits in here."""
        if self._phases is None:
            yield
            return
        began = self._phases.now
        yield
        self._ended = self._phases.now
        self._phases.waited(wait, self._ended - began)

    def went_on(self, wait: Wait) -> None:
        """What was waited for last was not there yet: it is now."""
        if self._phases is not None:
            began, self._ended = self._ended, self._phases.now
            self._phases.waited(wait, self._ended - began)


class Mark(Protocol):
    """A moment of a GPU's work, as ``torch.cuda.Event`` has it."""

    def query(self) -> bool:
        """Whether the GPU has come to it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from here to a later one."""


def mark_stream() -> Mark:
    """Where the stream that computes is when it has done what it has been given so far."""
    mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
    mark.record()
    return mark  # type: ignore[no-any-return] # as above


class StreamWaits(CommWaits):
    """How long the stream of a GPU that computes stood still, by its own clock; of stages alone."""

    def __init__(self, phases: StepTimer, mark: Callable[[], Mark] = mark_stream) -> None:
        """Nothing is read before the GPU has come to it: the host goes on as if nobody asked."""
        super().__init__()
        self._in_step, self._mark = phases, mark
        self._marked: deque[tuple[Wait, Mark, Mark]] = deque()

    @contextmanager
    def during(self, wait: Wait) -> Iterator[None]:
        """The stream is told to wait in here."""
        if not self._in_step.is_in_step:
            yield
            return
        began = self._mark()
        yield
        self._marked.append((wait, began, self._mark()))

    def known(self) -> Iterator[tuple[Wait, float]]:
        """Seconds of all waits that are over by now, each of them once: after the vote these are all of a step."""
        while self._marked and self._marked[0][2].query():
            wait, began, ended = self._marked.popleft()
            yield wait, began.elapsed_time(ended) / 1e3
