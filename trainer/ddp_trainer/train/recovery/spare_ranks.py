"""Spare ranks, for which the layout has no place: they wait, and replace a member that is lost in the next group."""

from __future__ import annotations

import json
from collections.abc import Callable

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.time_classes import Section
from ddp_trainer.train.checkpoint.summary import Summary
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.process_context import ProcessContext
from ddp_trainer.train.loop.run_result import Outcome
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost


def needs_more_ranks(parallel: LayoutRange | None, world: int, max_ranks: int | None) -> bool:
    """Return True if there are too few ranks for any layout, but more ranks can still join.

    Args:
        parallel: The range of layouts; None for plain data parallelism.
        world: Number of ranks now.
        max_ranks: Maximum number of ranks of the job; None if unknown.

    >>> layouts = LayoutRange.parse("replicate=1:2,shard=2")
    >>> [needs_more_ranks(layouts, world, 4) for world in (1, 2, 3)], needs_more_ranks(layouts, 1, None)
    ([True, False, False], False)
    """
    return parallel is not None and world < parallel.smallest.world <= (max_ranks or 0)


def select_active_ranks(parallel: LayoutRange, group: Group, note: Callable[[str], None]) -> None:
    """Reduce the group to the first ranks, as many as the layout has places; every rank must call it.

    Raises:
        BadConfig: There are too few ranks for any layout.
        PeerLost: A rank was lost.
    """
    world, layout = group.world_size, layout_of(parallel, group.world_size)
    if layout.world < world:
        note(f"--parallel {parallel} has a place for {layout.world} of the {world} ranks: the last ones are spare.")
    group.narrow(layout.world)


def await_end(around: ProcessContext, timer: StepTimer) -> Outcome:
    """Wait as a spare until the run ends, and return its outcome.

    Raises:
        PeerLost: The other ranks were lost.
        GroupEnded: A new group is formed, or this process received a stop request.
    """
    control, stop = around.control, around.stop
    timer.enter(Section.ASIDE)

    def is_over() -> bool:
        return stop.exit_code is not None or (control is not None and control.is_called_off)

    try:
        summary = Summary.from_dict(json.loads(around.group.wait_as_spare(is_over)))
    except PeerLost as err:
        if is_over():
            raise GroupEnded(err.message) from err
        raise
    return Outcome(summary, Exit.SUCCESS)
