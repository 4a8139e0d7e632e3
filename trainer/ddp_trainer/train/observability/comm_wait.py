"""How long a rank that holds a part of a model waits for the others in a step, and for what.

Measured where the training thread itself stands still: in the collectives of ``fully_shard``, in the transfers of a
pipeline's schedule, and in what stages do together before and after it. That is so on the CPU, where gloo's collectives
return when they are done. On a GPU they are handed over like any other work, and the host's clock knows nothing of what
the device waits for. Stages let their stream wait in the same places, so that it can be marked before and after.
``fully_shard`` does so deep inside of torch, where nobody is let in: of it nothing is told there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from ddp_trainer.common.constants import Wait
from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import Phases


class Waits:
    """A stopwatch for waiting: what it measures belongs to no other part of the step."""

    def __init__(self, phases: Phases | None = None) -> None:
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


class StreamWaits(Waits):
    """How long the stream of a GPU that computes stood still, by its own clock; of stages alone."""

    def __init__(self, phases: Phases, mark: Callable[[], Mark] = mark_stream) -> None:
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


def follow(model: nn.Module, layout: Layout, group: Group, phases: Phases, recorder: RankRecorder) -> Waits:
    """Measure what ranks of this layout wait for, in every step from now on; ``model`` was cut by it."""
    is_device = group.device.type != "cpu"
    kinds = () if is_device and layout.pp == 1 else kinds_of(layout)
    if not kinds:
        phases.expect(())
        return Waits()
    recorder.waited(dict.fromkeys(kinds, 0.0))
    if is_device:
        marked = StreamWaits(phases)
        phases.expect(kinds, marked.known)
        return marked
    phases.expect(kinds)
    waits = Waits(phases)
    if layout.shard > 1 and layout.pp == 1:  # stages tell of their pieces by themselves
        from ddp_trainer.train.parallel.fsdp_comm import time_collectives  # noqa: PLC0415 - imports fully_shard

        time_collectives(model, waits)
    return waits


def kinds_of(layout: Layout) -> Sequence[Wait]:
    """What there is to wait for.

    >>> [str(wait) for wait in kinds_of(Layout(replicate=2, shard=2, pp=2))], kinds_of(Layout(tp=2, pp=2))
    (['all_gather', 'reduce_scatter', 'stage'], (<Wait.STAGE: 'stage'>,))
    """
    of_pieces = (Wait.ALL_GATHER, Wait.REDUCE_SCATTER) if layout.shard > 1 else ()
    return (*of_pieces, Wait.STAGE) if layout.pp > 1 else of_pieces
