"""Rules that reject conflicting options of :mod:`ddp_trainer.train.config.options`.

:func:`check` applies all rules that need only the options. The other checks also need the worker group or the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Final

from ddp_trainer.common.enums import PrecisionName
from ddp_trainer.common.option_conflicts import WITHOUT_SHARD, Word, clashes
from ddp_trainer.common.parallel_dims import Layout, LayoutError, LayoutRange
from ddp_trainer.train.config.options import Level, LrScaling, OnNonFinite, Options, Recompute, StrategyName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig

_ONLY_DDP: Final = (
    "find_unused_parameters",
    "static_graph",
    "sync_batchnorm",
    "bucket_mb",
    "gradient_as_bucket_view",
)


def check(options: Options) -> None:
    """Check the ranges and combinations of options.

    Raises:
        BadConfig: A value is out of range, two options conflict, or an option requires another one.
    """
    for rule in _RULES:
        for error in rule(options):
            raise error


def _ranges(options: Options) -> Iterator[BadConfig]:
    for name in ("sync_steps", "micro_batch", "gc_steps", "nonfinite_limit", "lr_reference_batch", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            yield BadConfig(f"--{name.replace('_', '-')} is {value}.", hint="Give 1 or more.")
    if options.fsdp_prefetch < 0:
        yield BadConfig(f"--fsdp-prefetch is {options.fsdp_prefetch}.", hint="Give 0 or more.")
    if options.bucket_mb is not None and not 0 < options.bucket_mb < float("inf"):
        yield BadConfig(f"--bucket-mb is {options.bucket_mb}.", hint="Give a finite number above 0.")


def _of_ddp(options: Options) -> Iterator[BadConfig]:
    if options.strategy is not StrategyName.DDP:
        for given in _given(options, _ONLY_DDP):
            yield BadConfig(
                f"{given} is an option of DDP, and --strategy is {options.strategy}.",
                hint="Leave one of them out.",
            )


def _exact(options: Options) -> Iterator[BadConfig]:
    if options.level is not Level.EXACT:
        return
    for given, why in (
        (
            options.strategy is not StrategyName.DDP and f"--strategy {options.strategy}",
            "local-sgd steps by each rank's own gradients"
            if options.strategy is StrategyName.LOCAL_SGD
            else "it adds up gradients in a way of its own",
        ),
        (options.compile and "--compile", "a compiler chooses kernels by the shapes that a process has seen before"),
        (options.sync_batchnorm and "--sync-batchnorm", "it normalizes by the samples that are computed together"),
        (options.broadcast_buffers and "--broadcast-buffers", "rank 0 has other shards in another world"),
    ):
        if given:
            yield BadConfig(
                f"--level exact cannot give the same bits at any number of ranks with {given}: {why}.",
                hint="Leave it out, or give --level ordered.",
            )


def _static_graph(options: Options) -> Iterator[BadConfig]:
    if options.static_graph and options.find_unused_parameters:
        yield BadConfig(
            "--static-graph and --find-unused-parameters were both given.",
            hint="A static graph finds unused weights by itself: leave --find-unused-parameters out.",
        )


def _local_sgd(options: Options) -> Iterator[BadConfig]:
    if options.strategy is StrategyName.LOCAL_SGD and options.precision is PrecisionName.FP16:
        yield BadConfig(
            "--precision fp16 scales the loss by what all ranks' gradients allow, and with --strategy local-sgd each "
            "rank has gradients of its own.",
            hint="Give --precision bf16.",
        )


def _compile(options: Options) -> Iterator[BadConfig]:
    for given in _given(options, ("compile_fallback", "compile_blocks")):
        if not options.compile:
            yield BadConfig(f"{given} was given without --compile.", hint="Add --compile.")


def _recompute(options: Options) -> Iterator[BadConfig]:
    if options.recompute is not Recompute.ALL and not options.activation_checkpointing:
        yield BadConfig(
            f"--recompute is {options.recompute}, and nothing is computed again without --activation-checkpointing.",
            hint="Add it.",
        )


def _of_layouts(options: Options) -> Iterator[BadConfig]:
    """Yield conflicts between options and the layout of ``--parallel``."""
    for misfit in clashes(options.parallel, partial(_said, options)):
        yield BadConfig(misfit.sentence, hint=misfit.help)


def _said(options: Options, word: Word) -> str | None:
    """Return the value given for an option (empty for a switch), or None at the default."""
    is_off = word.flag.startswith("--no-")
    name = word.flag.removeprefix("--no-" if is_off else "--").replace("-", "_")
    value = getattr(options, name, None)
    if word.is_switch:
        return "" if value is not None and bool(value) is not is_off else None
    return None if value is None or value == () else str(value)


def _given(options: Options, names: Sequence[str]) -> Iterator[str]:
    """Yield the flags of those options that are not at their defaults."""
    default = {each.name: each.default for each in fields(options)}
    for name in names:
        value = getattr(options, name)
        if value != default[name]:
            yield f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


def _scaling(options: Options) -> Iterator[BadConfig]:
    if (options.lr_scaling is LrScaling.NONE) != (options.lr_reference_batch is None):
        yield BadConfig(
            f"--lr-scaling is {options.lr_scaling} and --lr-reference-batch is {options.lr_reference_batch}.",
            hint="Give both: the rule, and the global batch at which --learning-rate was found.",
        )


_RULES: Final[tuple[Callable[[Options], Iterator[BadConfig]], ...]] = (
    _ranges,
    _of_ddp,
    _exact,
    _static_graph,
    _local_sgd,
    _compile,
    _recompute,
    _of_layouts,
    _scaling,
)


def check_shard(options: Options) -> None:
    """Reject options of ``shard`` without a sharded layout. Call it when the layout of the job is known.

    Raises:
        BadConfig: An option of ``shard`` is given, but no layout shards the model.
    """
    for misfit in clashes(options.parallel, partial(_said, options), WITHOUT_SHARD):
        raise BadConfig(misfit.sentence, hint=misfit.help)


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


def check_places(parallel: LayoutRange | None, env: Environment) -> None:
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
    if leaves_some_in_a_node or env.fewest_ranks == env.most_ranks == env.world_size:
        raise BadConfig(
            f"--parallel is {parallel}: that has a place for {layout.world} of the {env.world_size} ranks.",
            hint=f"Give sizes whose product is {env.world_size}, or start fewer; where some are to be spare, give "
            f"a range, as {LayoutRange(layout, replace(layout, replicate=layout.replicate + 1))}.",
        )


def check_rollback(options: Options, *, keeps_checkpoints: bool, sequential: bool) -> None:
    """Reject ``--on-nonfinite rollback`` if the run cannot go back to a checkpoint.

    Raises:
        BadConfig: Rollback is selected, but no checkpoints are kept or the samples are a stream.
    """
    if options.on_nonfinite is not OnNonFinite.ROLLBACK:
        return
    if not keeps_checkpoints:
        raise BadConfig("--on-nonfinite is rollback, but no checkpoints are kept.", hint="Give a --checkpoint-dir.")
    if sequential:
        raise BadConfig(
            "--on-nonfinite is rollback, but the samples are a stream, which cannot be read backwards.",
            hint="Give --on-nonfinite skip or stop.",
        )
