"""From the name of a strategy to the strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ddp_trainer.train.options import Level, StrategyName
from ddp_trainer.train.strategies.data_parallel import DataParallel
from ddp_trainer.train.strategies.ddp import Ddp
from ddp_trainer.train.strategies.local_sgd import LocalSgd
from ddp_trainer.train.strategies.manual import Manual
from ddp_trainer.train.strategies.single import Single
from ddp_trainer.train.strategies.strategy import Parts, Strategy

_BY_NAME: Final[Mapping[StrategyName, Callable[[Parts], Strategy]]] = {
    StrategyName.DDP: Ddp,
    StrategyName.SINGLE: Single,
    StrategyName.DATA_PARALLEL: DataParallel,
    StrategyName.MANUAL: Manual,
    StrategyName.LOCAL_SGD: LocalSgd,
}

_NEED_PEERS: Final = frozenset({StrategyName.DDP, StrategyName.MANUAL, StrategyName.LOCAL_SGD})
"""With one rank there is nobody to exchange anything with, and no process group either."""


def build(parts: Parts) -> Strategy:
    """The strategy that the flags name.

    Raises:
        BadConfig: it does not go with this group, device or plan.
    """
    if parts.config.level is Level.EXACT:
        from ddp_trainer.train.strategies.exact import Exact  # noqa: PLC0415 - few runs need it

        return Exact(parts)
    if parts.example is not None:
        from ddp_trainer.train.strategies.fsdp import Fsdp  # noqa: PLC0415 - a second of imports; on request

        return Fsdp(parts)
    name = parts.config.strategy
    if parts.group.world_size == 1 and name in _NEED_PEERS:
        return Strategy(parts)
    return _BY_NAME[name](parts)
