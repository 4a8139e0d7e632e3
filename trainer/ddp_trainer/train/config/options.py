"""Options of the trainer: one dataclass per topic, one field per option.

:class:`Options` combines the dataclasses. :class:`ddp_trainer.train.config.config.Config` also checks the combinations
of values. To add an option, add a field here and read it from the ``Config`` where it takes effect.

How to add an option:

1. Add a field to the dataclass of its topic here. Flag, ``--help``, parser, the field of ``Config`` and the
   documentation are made from it. An ``int``, ``float``, ``str``, ``Path`` or ``StrEnum`` (of ``option_values.py``)
   is parsed by its type, and ``bool`` is a switch. Any other type needs ``parse=``. Checks of the value follow the
   help text: ``POSITIVE``, ``at_least(1)`` or a ``Constraint``::

       nesterov: bool = option(False, "Nesterov momentum, with --optimizer sgd")

2. Read it where it takes effect. An option of the optimizer is passed to torch in ``_build_optimizer`` of
   ``train/optim/optimizer.py``. On resume, the checkpoint's value applies, as for momentum, and with
   ``--init-optimizer`` that of the flag. If the flag must also win on resume, like the learning rate, add its key to
   ``_OF_FLAGS`` there. Only if it changes which state the optimizer keeps: it must never win, so leave it out of what
   ``_load_optimizer_state`` of ``train/checkpoint/weights_io.py`` keeps, and count that state in ``state_bytes`` of
   ``train/checkpoint/snapshot.py``.
3. Refuse combinations in ``_conflicts`` of ``config.py``: two options that cannot work together, and a value that
   would have no effect. A rule that needs the group, the task or the layout is in ``config.py``, too; a conflict
   with a layout of ``--parallel`` is in ``common/trainer_options.py``, which ``kubectl ddp`` applies too.
4. ``make docs`` writes ``docs/trainer-options.md``, and ``CHANGELOG.md`` gets a line; no other page or list has single
   options. A refused value or combination is a case in ``test_options.py``; the effect is tested beside the module of
   step 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_type_hints

from ddp_trainer.common.constants import CheckpointScope, Env
from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from ddp_trainer.common.trainer_options import OptimizerName, PipelineSchedule, PrecisionName
from ddp_trainer.train.config.option_values import (
    BackendName,
    BalancerName,
    CheckpointMode,
    DeviceName,
    EarlyStop,
    EvaluateOn,
    KernelName,
    Level,
    LrScaling,
    OnBadSample,
    OnNonfinite,
    ProfileWindow,
    Recompute,
    ScheduleName,
    StrategyName,
    parse_recompute,
)
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.locations import StorageUrl, parse_location

_T = TypeVar("_T")

_METAVARS: Final = {int: "N", float: "X", str: "NAME", Path: "DIR"}
"""Placeholder of a value in ``--help``, by its type."""


class OptionGroup:
    """Base class of a dataclass of options. ``heading`` is its heading in ``--help`` and in the documentation."""

    heading: ClassVar[str]

    def __init_subclass__(cls, heading: str = "") -> None:
        cls.heading = heading


class Constraint(NamedTuple):
    """Condition on the value of an option. An option that is None is not checked."""

    accepts: Callable[[Any], bool]
    hint: str


def at_least(least: float) -> Constraint:
    """Return the check that a number is ``least`` or more."""
    return Constraint(lambda value: value >= least, f"Give {least} or more.")


POSITIVE: Final = Constraint(lambda value: 0 < value < float("inf"), "Give a finite number above 0.")


def option(
    default: _T,
    help_text: str,
    *checks: Constraint,
    parse: Callable[[str], Any] | None = None,
    metavar: str | None = None,
) -> _T:
    """Declare a dataclass field that is a command-line option.

    Args:
        default: Value of the option if its flag is not given.
        help_text: Text in ``--help``. The default is appended.
        checks: Conditions on the value.
        parse: Converts the argument (default: derived from the type of the field).
        metavar: Placeholder of the argument in ``--help`` (default: derived from the type of the field).
    """
    return field(default=default, metadata={"help": help_text, "checks": checks, "parse": parse, "metavar": metavar})


def flag(name: str) -> str:
    """Return the command-line flag of a field.

    >>> flag("global_batch")
    '--global-batch'
    """
    return "--" + name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> list[argparse.Action]:
    """Add the flags of an :class:`OptionGroup` to a parser, and return them.

    A bool becomes a switch. A switch that is on by default also has a ``--no-`` form.
    """
    group = parser.add_argument_group(options.heading)
    hints = get_type_hints(options)
    return [
        group.add_argument(flag(member.name), **_argument(member, hints[member.name])) for member in fields(options)
    ]


def _argument(member: Field[Any], hint: Any) -> dict[str, Any]:
    """Return the keyword arguments of ``add_argument`` for a field with this type hint."""
    kind = (get_args(hint) or [hint])[0]  # without "| None"
    text, default = member.metadata["help"], member.default
    if kind is bool:
        return {"help": text, "action": argparse.BooleanOptionalAction if default else "store_true"}
    shown = f"{default:g}" if isinstance(default, float) else default
    return {
        "help": text if default is None else f"{text} (default: {shown})",
        "type": member.metadata["parse"] or (kind if kind in _METAVARS else partial(_one_of, kind)),
        "metavar": member.metadata["metavar"] or _METAVARS.get(kind) or f"{{{','.join(kind)}}}",
    }


def _one_of(kind: type[StrEnum], text: str) -> StrEnum:
    if text not in list(kind):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind)}")
    return kind(text)


def check_values(options: Any) -> None:
    """Check each option of a dataclass instance by itself.

    Raises:
        BadConfig: A value is out of range.
    """
    for member in fields(options):
        value = getattr(options, member.name)
        for check in member.metadata["checks"]:
            if value is not None and not check.accepts(value):
                raise BadConfig(f"{flag(member.name)} is {value}.", hint=check.hint)


LARGEST_BATCH: Final = 1 << 20
"""Maximum global batch. Sums of this many 32-bit sample hashes are exact in float64, the dtype of the ranks' votes."""


def _layouts(text: str) -> LayoutRange:
    try:
        return LayoutRange.parse(text)
    except LayoutError as err:
        raise BadConfig(f"--parallel is {text!r}: {err}.") from None


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise BadConfig(f"--fsdp-blocks is {text!r}.", hint="Give names of classes, with commas between them.")
    return found


@dataclass(frozen=True, kw_only=True)
class RunOptions(OptionGroup, heading="run"):
    """Task, length, batch and device of a run."""

    task: str = option("digits", "digits, text, image-folder, or module:factory of a user-defined task")
    epochs: int = option(30, "passes over the training samples", at_least(1))
    max_steps: int | None = option(None, "end after this many global steps", at_least(1))
    global_batch: int = option(
        64,
        "samples per global step, over all ranks",
        at_least(1),
        Constraint(lambda value: value <= LARGEST_BATCH, f"Give {LARGEST_BATCH} or fewer."),
    )
    batch_slices: int | None = option(None, "slices of every global batch: the maximum number of ranks", at_least(1))
    seed: int = option(
        0,
        "seed of the initial weights, the sample order and all random draws",
        Constraint(lambda value: 0 <= value < 1 << 63, "Give a number from 0 to 2^63 - 1."),
    )
    device: DeviceName = option(DeviceName.AUTO, "device to compute on")
    timeout_seconds: float = option(120.0, "timeout of a collective; then a peer counts as lost", POSITIVE, metavar="S")


@dataclass(frozen=True, kw_only=True)
class TaskOptions(OptionGroup, heading="task"):
    """Arguments of the task's factory, which receives those that are set and that it has a parameter for."""

    model: str | None = option(
        None, "mlp, cnn, resnet18, resnet50 or gpt, as in gpt:layers=4,width=128 (default: the task's own)"
    )
    data: Path | StorageUrl | None = option(
        None, "directory or URL (s3://, gs://) of the samples", parse=parse_location, metavar="DIR|URL"
    )
    window: int | None = option(None, "bytes in a sample of text (default: 128)", at_least(1))
    image_size: int | None = option(None, "side of the images in pixels (default: 64)", at_least(1))


@dataclass(frozen=True, kw_only=True)
class DataOptions(OptionGroup, heading="data"):
    """Reading of samples and their distribution over ranks."""

    loader_workers: int = option(0, "processes per rank that read samples ahead", at_least(0))
    prefetch: int = option(2, "batch slices that each of them reads ahead", at_least(1))
    on_bad_sample: OnBadSample = option(OnBadSample.FAIL, "action on a sample that cannot be read")
    balance: BalancerName = option(BalancerName.STATIC, "dynamic assigns fewer batch slices to a slow rank")


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions(OptionGroup, heading="optimization"):
    """Optimizer and learning rate."""

    optimizer: OptimizerName = option(OptimizerName.ADAMW, "optimizer; AdamW uses torch's default betas")
    learning_rate: float = option(3e-3, "peak learning rate", POSITIVE)
    weight_decay: float = option(0.01, "weight decay: decoupled in AdamW, L2 in SGD", at_least(0))
    momentum: float = option(0.9, "momentum of SGD", at_least(0))
    schedule: ScheduleName = option(ScheduleName.COSINE, "learning rate schedule after the warmup")
    warmup_steps: int = option(50, "global steps over which the learning rate rises linearly from zero", at_least(0))
    clip_norm: float | None = option(None, "maximum norm of the whole gradient (default: no clipping)", POSITIVE)
    lr_scaling: LrScaling = option(LrScaling.NONE, "scale the learning rate with the global batch")
    lr_reference_batch: int | None = option(None, "global batch at which the learning rate is as given", at_least(1))
    optimizer_kernel: KernelName = option(KernelName.AUTO, "implementation of the optimizer step")


@dataclass(frozen=True, kw_only=True)
class StrategyOptions(OptionGroup, heading="strategy"):
    """Backend, layout of the model, and how replicas stay in sync."""

    backend: BackendName = option(BackendName.AUTO, "backend of the collectives")
    survive_on_nccl: bool = option(
        False, f"keep the process when an NCCL group ends; not proven on GPUs (default: ${Env.SURVIVE_ON_NCCL})"
    )
    level: Level = option(Level.ORDERED, "equality of results at different numbers of ranks")
    strategy: StrategyName = option(StrategyName.DDP, "how the ranks' replicas stay one model")
    parallel: LayoutRange | None = option(
        None,
        "layout, as in replicate=2,shard=2,tp=2,pp=2; a size may be a range, as 1:4",
        parse=_layouts,
        metavar="LAYOUT",
    )
    fsdp_blocks: tuple[str, ...] | None = option(
        None,
        "of shard: classes of the blocks that are gathered one at a time (default: the layers of a ModuleList)",
        parse=_names,
        metavar="NAME[,NAME]",
    )
    fsdp_reshard: bool = option(True, "of shard: free a block's weights between forward and backward")
    fsdp_prefetch: int = option(0, "of shard: blocks to gather ahead of the one that computes", at_least(0))
    fsdp_offload: bool = option(False, "of shard: keep the shards in CPU memory, and step there")
    pipeline_schedule: PipelineSchedule = option(PipelineSchedule.ONE_F_ONE_B, "of pp: order of micro-batches")
    sync_steps: int = option(8, "of local-sgd: steps between two synchronizations", at_least(1))
    find_unused_parameters: bool = option(False, "some weights take no part in some steps (as in DDP)")
    static_graph: bool = option(False, "every pass uses the same weights in the same order (as in DDP)")
    broadcast_buffers: bool = option(False, "running statistics are rank 0's, not the mean over all batch slices")
    bucket_mb: float | None = option(None, "size of a gradient bucket in MiB", POSITIVE)
    gradient_as_bucket_view: bool = option(True, "gradients are views of the buckets: one copy less")
    sync_batchnorm: bool = option(False, "BatchNorm normalizes over the samples of all ranks; on GPUs")

    @property
    def is_model_sharded(self) -> bool:
        """True if the largest layout splits the model, so that no rank holds all of it."""
        return self.parallel is not None and self.parallel.largest.replica > 1


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(OptionGroup, heading="speed and memory"):
    """Precision, memory and speed of a step."""

    precision: PrecisionName = option(PrecisionName.FP32, "number format of the forward and backward pass")
    micro_batch: int | None = option(None, "maximum samples in one pass, also of evaluations", at_least(1))
    activation_checkpointing: bool = option(False, "recompute activations in the backward pass, to save memory")
    recompute: Recompute | int = option(
        Recompute.ALL,
        "of --activation-checkpointing: all of each block, cheap (all but matrix products, attention and "
        "convolutions), or N for every N-th block",
        parse=parse_recompute,
        metavar="WHAT",
    )
    compile: bool = option(False, "compile the model with torch.compile")
    compile_blocks: bool = option(False, "with --compile: compile each block separately (always, if --parallel splits)")
    compile_backend: str = option("inductor", "backend of torch.compile")
    compile_fallback: bool = option(False, "train uncompiled if the model cannot be compiled")
    channels_last: bool = option(False, "keep images as NHWC in memory, which convolutions on GPUs prefer")
    gc_steps: int | None = option(None, "collect garbage on all ranks every N steps, and at no other time", at_least(1))
    threads: int | None = option(
        None, "CPU threads of each rank (default: its share of the processor; with --level exact 1)", at_least(1)
    )
    deterministic: bool = option(False, "use only algorithms that give the same bits on every run")


@dataclass(frozen=True, kw_only=True)
class NonfiniteOptions(OptionGroup, heading="guards"):
    """Reaction to a loss or gradient that is infinite or not a number."""

    on_nonfinite: OnNonfinite = option(OnNonfinite.STOP, "action on an infinite or NaN loss or gradient")
    nonfinite_limit: int = option(10, "skipped steps in a row, or rollbacks, before the run stops", at_least(1))


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(OptionGroup, heading="checkpoints"):
    """Checkpoints and initial weights."""

    checkpoint_dir: Path | StorageUrl | None = option(
        None,
        f"directory of the checkpoints, or s3://BUCKET/PREFIX or gs://BUCKET/PREFIX (default: ${Env.CHECKPOINT_DIR})",
        parse=parse_location,
        metavar="DIR",
    )
    checkpoint_scope: CheckpointScope | None = option(
        None,
        f"all ranks share the directory (job), or the ranks of a pod (default: ${Env.CHECKPOINT_SCOPE}, else job)",
    )
    checkpoint_steps: int | None = option(None, "save when the step is a multiple of N", at_least(1))
    checkpoint_seconds: float | None = option(30.0, "seconds between checkpoints; inf: never", at_least(0), metavar="S")
    checkpoint_mode: CheckpointMode = option(CheckpointMode.ASYNC, "write in the background, or while training waits")
    keep: int = option(3, "checkpoints to keep", at_least(1))
    keep_best: str | None = option(None, "also keep the best by this metric: accuracy, loss", metavar="METRIC")
    mtbf: float | None = option(None, "MTBF of the job, to suggest a checkpoint interval", at_least(1), metavar="S")
    init_from: Path | None = option(
        None, "initial weights: a .pt or .safetensors file, or a *.safetensors.index.json", metavar="FILE"
    )
    init_optimizer: bool = option(False, "with --init-from, load the optimizer's state too")


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(OptionGroup, heading="evaluation"):
    """Evaluation on the test samples."""

    evaluate_every: int = option(1, "epochs between evaluations; the end of the run is always evaluated", at_least(1))
    evaluate_on: EvaluateOn = option(EvaluateOn.ALL, "ranks that evaluate")
    early_stop: EarlyStop | None = option(
        None, "end after so many evaluations without improvement", parse=EarlyStop.parse, metavar="METRIC:PATIENCE"
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(OptionGroup, heading="output"):
    """Progress, logs, summary and traces."""

    log_seconds: float = option(5.0, "seconds between progress lines", at_least(0), metavar="S")
    log_steps: int | None = option(None, "steps between progress lines, instead of --log-seconds", at_least(1))
    log_json: bool = option(False, "progress and summary as JSON lines on stdout")
    summary: Path | None = option(None, f"summary of the run (default: ${Env.RUN_DIR}/summary.json)", metavar="FILE")
    tensorboard: Path | None = option(None, "write TensorBoard events (needs tensorboard)")
    wandb: str | None = option(None, "log to this project of Weights & Biases (needs wandb)", metavar="PROJECT")
    mlflow: str | None = option(None, "log to this experiment of MLflow (needs mlflow)", metavar="EXPERIMENT")
    csv: Path | None = option(None, "append every step and evaluation to a CSV file", metavar="FILE")
    profile: ProfileWindow | None = option(
        None, "write a torch profiler trace of these steps", parse=ProfileWindow.parse, metavar="START:COUNT"
    )
    profile_rank: int = option(0, "rank to profile", at_least(0))
    profile_dir: Path | None = option(None, "directory of the trace (default: the run directory, else the current one)")


@dataclass(frozen=True, kw_only=True)
class Options(
    RunOptions,
    TaskOptions,
    DataOptions,
    OptimizationOptions,
    StrategyOptions,
    ComputeOptions,
    NonfiniteOptions,
    CheckpointOptions,
    EvaluationOptions,
    OutputOptions,
):
    """All options, in the order of their groups in ``--help`` and in the documentation."""
