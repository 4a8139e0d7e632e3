"""Configuration of a run: :class:`Config`, a frozen dataclass that validates itself when it is created.

The functions check what also depends on the worker group, the task, or the layout of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from ddp_trainer.common.constants import CheckpointScope
from ddp_trainer.common.parallel_dims import Layout, LayoutError, LayoutRange
from ddp_trainer.common.trainer_options import WITHOUT_SHARD, OptionCondition, PrecisionName, find_conflicts
from ddp_trainer.train.config.option_values import Level, LrScaling, OnNonfinite, Recompute, StrategyName
from ddp_trainer.train.config.options import Options, check_values, flag
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.locations import StorageUrl


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Configuration of one run, independent of the number of workers."""

    def __post_init__(self) -> None:
        """Validate the values and their combinations.

        Raises:
            BadConfig: A value is out of range, two options conflict, or an option requires another one.
        """
        check_values(self)
        for is_conflict, sentence, hint in _conflicts(self):
            if is_conflict:
                raise BadConfig(sentence, hint=hint)


def _conflicts(config: Config) -> Iterator[tuple[object, str, str]]:
    """Yield each rule on combinations of options: true if it is violated, the error message, and the hint."""
    given = _given(
        config, "find_unused_parameters", "static_graph", "sync_batchnorm", "bucket_mb", "gradient_as_bucket_view"
    )
    yield (
        config.strategy is not StrategyName.DDP and given,
        f"{given} is an option of DDP, and --strategy is {config.strategy}.",
        "Leave one of them out.",
    )
    for inexact, why in _world_dependent_options(config):
        yield (
            config.level is Level.EXACT and inexact,
            f"--level exact cannot give the same bits at any number of ranks with {inexact}: {why}.",
            "Leave it out, or give --level ordered.",
        )
    yield (
        config.static_graph and config.find_unused_parameters,
        "--static-graph and --find-unused-parameters were both given.",
        "A static graph finds unused weights by itself: leave --find-unused-parameters out.",
    )
    yield (
        config.strategy is StrategyName.LOCAL_SGD and config.precision is PrecisionName.FP16,
        (
            "--precision fp16 chooses the loss scale from the gradients of all ranks, and with --strategy local-sgd "
            "each rank has different gradients."
        ),
        "Give --precision bf16.",
    )
    given = _given(config, "compile_fallback", "compile_blocks")
    yield given and not config.compile, f"{given} was given without --compile.", "Add --compile."
    yield (
        config.recompute is not Recompute.ALL and not config.activation_checkpointing,
        f"--recompute is {config.recompute}, and nothing is computed again without --activation-checkpointing.",
        "Add it.",
    )
    for clash in find_conflicts(config.parallel, partial(given_value, config)):
        yield True, clash.message, clash.help
    yield (
        (config.lr_scaling is LrScaling.NONE) != (config.lr_reference_batch is None),
        f"--lr-scaling is {config.lr_scaling} and --lr-reference-batch is {config.lr_reference_batch}.",
        "Give both: the rule, and the global batch at which --learning-rate was found.",
    )
    yield (
        isinstance(config.checkpoint_dir, StorageUrl) and config.checkpoint_scope is CheckpointScope.POD,
        f"--checkpoint-scope is pod, and all pods share --checkpoint-dir {config.checkpoint_dir}.",
        "Leave --checkpoint-scope out.",
    )
    most = config.global_batch
    yield (
        config.batch_slices is not None and config.batch_slices > most,
        f"--batch-slices is {config.batch_slices}, but a global batch of {most} has at most {most} slices.",
        "Raise --global-batch or lower --batch-slices.",
    )


def _world_dependent_options(config: Config) -> Iterator[tuple[object, str]]:
    """Yield the flags of options whose results depend on the number of ranks, each with the reason."""
    is_local = config.strategy is StrategyName.LOCAL_SGD
    why = "local-sgd steps by each rank's own gradients" if is_local else "it sums gradients in a different order"
    yield config.strategy is not StrategyName.DDP and f"--strategy {config.strategy}", why
    yield _given(config, "compile"), "a compiler chooses kernels by the shapes that a process has seen before"
    yield _given(config, "sync_batchnorm"), "it normalizes by the samples that are computed together"
    yield _given(config, "broadcast_buffers"), "rank 0 has other batch slices in another world"


def _given(config: Config, *names: str) -> str:
    """Return the flag of the first of these options that is not at its default; empty if all are."""
    for name in names:
        value = getattr(config, name)
        if value != getattr(Config, name):
            return flag(name if value is not False else f"no_{name}")
    return ""


def given_value(config: Config, word: OptionCondition) -> str | None:
    """Return the value given for an option (empty for a switch), or None at the default."""
    is_off = word.flag.startswith("--no-")
    value = getattr(config, word.flag.removeprefix("--no-" if is_off else "--").replace("-", "_"), None)
    if word.is_switch:
        return "" if value is not None and bool(value) is not is_off else None
    return None if value is None or value == () else str(value)


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
