"""Ranks for which the layout of their group has no place: they wait, and step in when a member is lost."""

from __future__ import annotations

import json
from collections.abc import Callable

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.train.checkpoint.summary import Summary
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.process_context import ProcessContext
from ddp_trainer.train.utils.errors import GroupEnds, PeerLost


def needs_more_ranks(parallel: LayoutRange | None, world: int, most_ranks: int | None) -> bool:
    """Whether there are too few ranks for any layout now, and may be enough when more have come.

    >>> layouts = LayoutRange.parse("replicate=1:2,shard=2")
    >>> [needs_more_ranks(layouts, world, 4) for world in (1, 2, 3)], needs_more_ranks(layouts, 1, None)
    ([True, False, False], False)
    """
    return parallel is not None and world < parallel.smallest.world <= (most_ranks or 0)


def select_active_ranks(parallel: LayoutRange, group: Group, note: Callable[[str], None]) -> None:
    """Go on with as many ranks as the layout has a place for, the first ones; every rank must call it.

    Raises:
        BadConfig: there are too few for any layout.
        PeerLost: a rank is gone.
    """
    world, layout = group.world_size, layout_of(parallel, group.world_size)
    if layout.world < world:
        note(f"--parallel {parallel} has a place for {layout.world} of the {world} ranks: the last ones are spare.")
    group.narrow(layout.world)


def await_end(around: ProcessContext) -> Summary:
    """Wait as a spare until the run is over; how it ended.

    Raises:
        PeerLost: the others are gone.
        GroupEnds: another group is formed, or this process was told to end.
    """
    control, stop = around.control, around.stop

    def is_over() -> bool:
        return stop.requested or (control is not None and control.is_called_off)

    try:
        return Summary.from_dict(json.loads(around.group.stand_aside(is_over)))
    except PeerLost as err:
        if is_over():
            raise GroupEnds(err.message) from err
        raise
