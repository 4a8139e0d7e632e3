"""Rules on options that also need the worker group, the task, or the layout of the job.

:class:`ddp_trainer.train.config.config.Config` applies the rules that need only the options.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ddp_trainer.common.option_conflicts import WITHOUT_SHARD, find_conflicts
from ddp_trainer.common.parallel_dims import Layout, LayoutError, LayoutRange
from ddp_trainer.train.config.config import Config, given_value
from ddp_trainer.train.config.option_values import OnNonfinite
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig


def check_shard(config: Config) -> None:
    """Reject options of ``shard`` without a sharded layout. Call it when the layout of the job is known.

    Raises:
        BadConfig: An option of ``shard`` is given, but no layout shards the model.
    """
    for misfit in find_conflicts(config.parallel, partial(given_value, config), WITHOUT_SHARD):
        raise BadConfig(misfit.message, hint=misfit.help)


def layout_of(parallel: LayoutRange, world: int) -> Layout:
    """Return the layout for a group of ``world`` ranks.

    The layout can have fewer ranks than the group. The last ranks of the group are then spare.

    Raises:
        BadConfig: Even the smallest layout has more than ``world`` ranks.
    """
    try:
        return parallel.choose(world)
    except LayoutError as err:
        raise BadConfig(f"--parallel is {parallel}: {err}.") from None


def check_unused_ranks(parallel: LayoutRange | None, env: Environment) -> None:
    """Reject a fixed layout that leaves ranks without a place in every possible group. Ranges are not checked.

    All nodes are assumed to have the same number of ranks.

    Raises:
        BadConfig: The layout has fewer ranks than the group, and either does not fill whole nodes, or the number of
            nodes cannot change.
    """
    layout = None if parallel is None else parallel.fixed
    if layout is None or env.world_size <= layout.world:
        return
    leaves_some_in_a_node = env.world_size % env.local_world_size == 0 and layout.world % env.local_world_size
    if leaves_some_in_a_node or env.min_ranks == env.max_ranks == env.world_size:
        raise BadConfig(
            f"--parallel is {parallel}: that has a place for {layout.world} of the {env.world_size} ranks.",
            hint=f"Give sizes whose product is {env.world_size}, or start fewer; where some are to be spare, give "
            f"a range, as {LayoutRange(layout, replace(layout, replicate=layout.replicate + 1))}.",
        )


def check_rollback(config: Config, *, keeps_checkpoints: bool, sequential: bool) -> None:
    """Reject ``--on-nonfinite rollback`` if the run cannot go back to a checkpoint.

    Raises:
        BadConfig: Rollback is selected, but no checkpoints are kept or the samples are a stream.
    """
    if config.on_nonfinite is not OnNonfinite.ROLLBACK:
        return
    if not keeps_checkpoints:
        raise BadConfig("--on-nonfinite is rollback, but no checkpoints are kept.", hint="Give a --checkpoint-dir.")
    if sequential:
        raise BadConfig(
            "--on-nonfinite is rollback, but the samples are a stream, which cannot be read backwards.",
            hint="Give --on-nonfinite skip or stop.",
        )
