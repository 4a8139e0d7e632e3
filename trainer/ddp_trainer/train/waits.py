"""How long a rank that holds a part of a model waits for the others in a step, and for what.

Measured where the training thread itself stands still: in the collectives of ``fully_shard``, in the transfers of a
pipeline's schedule, and in what stages do together before and after it. That is so on the CPU, where gloo's collectives
return when they are done. On a GPU they are handed over like any other work, and the host's clock knows nothing of what
the device waits for: nothing is told there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from ddp_trainer.contract import Wait
from ddp_trainer.layout import Layout
from ddp_trainer.recorder import RankRecorder
from ddp_trainer.train.group import Group
from ddp_trainer.train.phases import Phases


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


def follow(model: nn.Module, layout: Layout, group: Group, phases: Phases, recorder: RankRecorder) -> Waits:
    """Measure what ranks of this layout wait for, in every step from now on; ``model`` was cut by it."""
    kinds = kinds_of(layout) if group.device.type == "cpu" else ()
    phases.expect(kinds)
    if not kinds:
        return Waits()
    recorder.waited(dict.fromkeys(kinds, 0.0))
    waits = Waits(phases)
    if layout.shard > 1 and layout.pp == 1:  # stages tell of their pieces by themselves
        from ddp_trainer.train.shard_collectives import time_collectives  # noqa: PLC0415 - imports fully_shard

        time_collectives(model, waits)
    return waits


def kinds_of(layout: Layout) -> Sequence[Wait]:
    """What there is to wait for.

    >>> [str(wait) for wait in kinds_of(Layout(replicate=2, shard=2, pp=2))], kinds_of(Layout(tp=2, pp=2))
    (['all_gather', 'reduce_scatter', 'stage'], (<Wait.STAGE: 'stage'>,))
    """
    of_pieces = (Wait.ALL_GATHER, Wait.REDUCE_SCATTER) if layout.shard > 1 else ()
    return (*of_pieces, Wait.STAGE) if layout.pp > 1 else of_pieces
