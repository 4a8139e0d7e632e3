"""Factory of parallel strategies: :func:`build` makes the strategy that the flags name.

:func:`measure_waits` makes the timer of a strategy's waits for other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from torch import nn

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.common.time_classes import Wait
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.config.option_values import Level, StrategyName
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import CommWaits, StepTimer, StreamWaits
from ddp_trainer.train.parallel.strategy import DataParallel, Ddp, LocalSgd, Manual, Single, Strategy

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState
    from ddp_trainer.train.parallel.strategy import StrategyArguments

_BY_NAME: Final[Mapping[StrategyName, Callable[[StrategyArguments], Strategy]]] = {
    StrategyName.DDP: Ddp,
    StrategyName.SINGLE: Single,
    StrategyName.DATA_PARALLEL: DataParallel,
    StrategyName.MANUAL: Manual,
    StrategyName.LOCAL_SGD: LocalSgd,
}

_NEED_PEERS: Final = frozenset({StrategyName.DDP, StrategyName.MANUAL, StrategyName.LOCAL_SGD})
"""Strategies that need a process group, which a single rank does not have."""


def build(arguments: StrategyArguments) -> Strategy:
    """Build the strategy that the flags name.

    Raises:
        BadConfig: The strategy does not work with this group, device or plan.
    """
    if arguments.config.level is Level.EXACT:
        from ddp_trainer.train.parallel.bitwise_ddp import Exact  # noqa: PLC0415 - few runs need it

        return Exact(arguments)
    if arguments.sharded is not None:
        return _build_sharded(arguments, arguments.sharded)
    name = arguments.config.strategy
    if arguments.group.world_size == 1 and name in _NEED_PEERS:
        return Strategy(arguments)
    return _BY_NAME[name](arguments)


def _build_sharded(arguments: StrategyArguments, sharded: ShardedState) -> Strategy:
    """Build the strategy of a layout in which no rank holds the whole model.

    Each strategy is imported only when it is needed: the import takes about a second.
    """
    layout = sharded.mesh.layout
    if layout.pp > 1:
        from ddp_trainer.train.parallel.pipeline import Pipeline  # noqa: PLC0415 - see above
        from ddp_trainer.train.parallel.pp.pp_state import PipelineState  # noqa: PLC0415 - see above

        assert isinstance(sharded, PipelineState)  # noqa: S101 - cut before the optimizer was built
        return Pipeline(arguments, sharded.stages)
    if layout.shard > 1:
        from ddp_trainer.train.parallel.fsdp import Fsdp  # noqa: PLC0415 - see above

        return Fsdp(arguments)
    from ddp_trainer.train.parallel.tensor_parallel import TensorParallel  # noqa: PLC0415 - see above

    return TensorParallel(arguments, sharded.mesh)


def measure_waits(
    model: nn.Module, layout: Layout, group: Group, phases: StepTimer, recorder: RankRecorder
) -> CommWaits:
    """Start to measure how long this rank waits for its peers in each step, and return the timer.

    Args:
        model: The model, already cut by ``layout``.
        layout: The parallel layout of the group.
        group: The group of the ranks.
        phases: The timer of the phases of a step.
        recorder: The recorder of the metrics.
    """
    is_device = group.device.type != "cpu"
    kinds = () if is_device and layout.pp == 1 else possible_waits(layout)
    if not kinds:
        phases.expect(())
        return CommWaits()
    recorder.record_wait(dict.fromkeys(kinds, 0.0))
    if is_device:
        marked = StreamWaits(phases)
        phases.expect(kinds, marked.known)
        return marked
    phases.expect(kinds)
    waits = CommWaits(phases)
    if layout.shard > 1 and layout.pp == 1:  # a pipeline measures its own gathers and reductions
        from ddp_trainer.train.parallel.fsdp import time_collectives  # noqa: PLC0415 - imports fully_shard

        time_collectives(model, waits)
    return waits


def possible_waits(layout: Layout) -> Sequence[Wait]:
    """Return the kinds of waits that can occur in this layout.

    >>> [str(wait) for wait in possible_waits(Layout(replicate=2, shard=2, pp=2))], possible_waits(Layout(tp=2, pp=2))
    (['all_gather', 'reduce_scatter', 'stage'], (<Wait.STAGE: 'stage'>,))
    """
    of_pieces = (Wait.ALL_GATHER, Wait.REDUCE_SCATTER) if layout.shard > 1 else ()
    return (*of_pieces, Wait.STAGE) if layout.pp > 1 else of_pieces
