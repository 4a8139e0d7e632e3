"""Time that a rank with a part of the model waits for other ranks in a step, by kind of wait.

:class:`CommWaits` measures on the CPU, where gloo's collectives block the training thread until they are done. It
covers the collectives of ``fully_shard``, the transfers of a pipeline schedule, and the exchanges of stages before and
after it. On a GPU, collectives are queued, and the host clock does not show the waits of the device. There
:class:`StreamWaits` records events on the stream before and after the waits of pipeline stages. The waits of
``fully_shard`` on a GPU are not measured, because torch offers no hook around them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.train.observability.step_timer import StepTimer


class CommWaits:
    """Timer of waits. It moves them from the other phases of the step to ``comm_exposed``."""

    def __init__(self, phases: StepTimer | None = None) -> None:
        """``phases`` receives the waits; without it, nothing is measured."""
        self._phases = phases
        self._ended = 0.0

    @contextmanager
    def during(self, wait: Wait) -> Iterator[None]:
        """Measure the body of the ``with`` statement as a wait."""
        if self._phases is None:
            yield
            return
        began = self._phases.now
        yield
        self._ended = self._phases.now
        self._phases.record_wait(wait, self._ended - began)

    def extend_wait(self, wait: Wait) -> None:
        """Extend the last wait until now: it has a second part that ends here."""
        if self._phases is not None:
            began, self._ended = self._ended, self._phases.now
            self._phases.record_wait(wait, self._ended - began)


class Mark(Protocol):
    """Point in the work of a GPU, in the form of ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return True if the GPU has reached this point."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this point to a later one."""


def mark_stream() -> Mark:
    """Record an event on the current CUDA stream, after the work that is queued so far."""
    mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
    mark.record()
    return mark  # type: ignore[no-any-return] # as above


class StreamWaits(CommWaits):
    """Timer of the waits of the computing GPU stream, by the clock of the GPU; for pipeline stages only."""

    def __init__(self, phases: StepTimer, mark: Callable[[], Mark] = mark_stream) -> None:
        """``phases`` shows whether a step is running. ``mark`` records an event; the host never waits for it."""
        super().__init__()
        self._in_step, self._mark = phases, mark
        self._marked: deque[tuple[Wait, Mark, Mark]] = deque()

    @contextmanager
    def during(self, wait: Wait) -> Iterator[None]:
        """Record events before and after the body, which makes the stream wait; only within a step."""
        if not self._in_step.is_in_step:
            yield
            return
        began = self._mark()
        yield
        self._marked.append((wait, began, self._mark()))

    def known(self) -> Iterator[tuple[Wait, float]]:
        """Yield the seconds of each finished wait, once. After the vote these are all waits of the step."""
        while self._marked and self._marked[0][2].query():
            wait, began, ended = self._marked.popleft()
            yield wait, began.elapsed_time(ended) / 1e3
