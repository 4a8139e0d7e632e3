"""Factory of parallel strategies: :func:`build` makes the strategy that the flags name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ddp_trainer.train.config.option_values import Level, StrategyName
from ddp_trainer.train.parallel.strategy import DataParallel, Ddp, LocalSgd, Manual, Parts, Single, Strategy

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState

_BY_NAME: Final[Mapping[StrategyName, Callable[[Parts], Strategy]]] = {
    StrategyName.DDP: Ddp,
    StrategyName.SINGLE: Single,
    StrategyName.DATA_PARALLEL: DataParallel,
    StrategyName.MANUAL: Manual,
    StrategyName.LOCAL_SGD: LocalSgd,
}

_NEED_PEERS: Final = frozenset({StrategyName.DDP, StrategyName.MANUAL, StrategyName.LOCAL_SGD})
"""Strategies that need a process group, which a single rank does not have."""


def build(parts: Parts) -> Strategy:
    """Build the strategy that the flags name.

    Raises:
        BadConfig: The strategy does not work with this group, device or plan.
    """
    if parts.config.level is Level.EXACT:
        from ddp_trainer.train.parallel.bitwise_ddp import Exact  # noqa: PLC0415 - few runs need it

        return Exact(parts)
    if parts.spread is not None:
        return _of_spread(parts, parts.spread)
    name = parts.config.strategy
    if parts.group.world_size == 1 and name in _NEED_PEERS:
        return Strategy(parts)
    return _BY_NAME[name](parts)


def _of_spread(parts: Parts, spread: ShardedState) -> Strategy:
    """Build the strategy of a layout in which no rank holds the whole model.

    Each strategy is imported only when it is needed: the import takes about a second.
    """
    layout = spread.mesh.layout
    if layout.pp > 1:
        from ddp_trainer.train.parallel.pipeline import Pipeline  # noqa: PLC0415 - see above
        from ddp_trainer.train.parallel.pp.pp_state import PipelineState  # noqa: PLC0415 - see above

        assert isinstance(spread, PipelineState)  # noqa: S101 - cut before the optimizer was built
        return Pipeline(parts, spread.stages)
    if layout.shard > 1:
        from ddp_trainer.train.parallel.fsdp import Fsdp  # noqa: PLC0415 - see above

        return Fsdp(parts)
    from ddp_trainer.train.parallel.tensor_parallel import TensorParallel  # noqa: PLC0415 - see above

    return TensorParallel(parts, spread.mesh)
