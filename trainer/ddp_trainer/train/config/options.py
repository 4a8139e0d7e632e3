"""Options that control how a step is computed, with the metadata of their command-line flags.

Few runs change them, unlike the fields of :class:`ddp_trainer.train.config.config.Config` itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ddp_trainer.common.constants import Env
from ddp_trainer.common.enums import PipelineSchedule, PrecisionName
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.train.config.cli_fields import OptionGroup, flagged, layouts, names
from ddp_trainer.train.utils.errors import BadConfig


class StrategyName(StrEnum):
    """Strategies that keep the model replicas of all ranks in sync."""

    DDP = "ddp"
    SINGLE = "single"
    DATA_PARALLEL = "data-parallel"
    MANUAL = "manual"
    LOCAL_SGD = "local-sgd"


class Level(StrEnum):
    """Degrees of equality between runs with different numbers of ranks."""

    ORDERED = "ordered"
    """Same samples in the same steps with the same random draws. Results are equal up to rounding."""
    EXACT = "exact"
    """Results are bit-identical."""
    FAST = "fast"
    """Same samples in the same steps. Each rank computes its shards as one batch, and nothing else is guaranteed."""


class Recompute(StrEnum):
    """Parts that ``--activation-checkpointing`` recomputes. The option also accepts N, for every N-th block."""

    ALL = "all"
    """Recompute whole blocks."""
    CHEAP = "cheap"
    """Keep the results of matrix products, attention and convolutions, and recompute everything else."""


class OnNonFinite(StrEnum):
    """Actions on a loss or gradient that is infinite or not a number."""

    STOP = "stop"
    SKIP = "skip"
    ROLLBACK = "rollback"


class LrScaling(StrEnum):
    """Scaling rules of the learning rate with the global batch."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class KernelName(StrEnum):
    """Implementations of the optimizer step."""

    AUTO = "auto"
    LOOP = "loop"
    FOREACH = "foreach"
    FUSED = "fused"


class OnBadSample(StrEnum):
    """Actions on a sample that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"


class BalanceName(StrEnum):
    """Assignments of logical shards to ranks."""

    STATIC = "static"
    DYNAMIC = "dynamic"


class BackendName(StrEnum):
    """Backends of the collectives."""

    AUTO = "auto"
    """NCCL on GPUs, gloo on CPUs."""
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"


def recomputed(text: str) -> Recompute | int:
    """Parse the value of ``--recompute``.

    >>> recomputed("cheap"), recomputed("2")
    (<Recompute.CHEAP: 'cheap'>, 2)

    Raises:
        BadConfig: The text is neither a :class:`Recompute` value nor a positive number.
    """
    if text in list(Recompute):
        return Recompute(text)
    if not text.isdecimal() or int(text) < 1:
        raise BadConfig(f"--recompute is {text!r}.", hint=f"Give {', '.join(Recompute)}, or N for every N-th block.")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the step computation. :class:`ddp_trainer.train.config.config.Config` inherits them."""

    model: str | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.TASK,
            "mlp, cnn, resnet18, resnet50 or gpt, with options as in gpt:layers=4,width=128 (default: the task's own)",
            parse=str,
            metavar="NAME",
        ),
    )
    data: Path | None = field(
        default=None, metadata=flagged(OptionGroup.TASK, "folder of the samples", parse=Path, metavar="DIR")
    )
    window: int | None = field(
        default=None,
        metadata=flagged(OptionGroup.TASK, "bytes in a sample of text (default: 128)", parse=int, metavar="N"),
    )
    image_size: int | None = field(
        default=None,
        metadata=flagged(OptionGroup.TASK, "side of the images, in pixels (default: 64)", parse=int, metavar="N"),
    )

    backend: BackendName = field(
        default=BackendName.AUTO,
        metadata=flagged(
            OptionGroup.STRATEGY,
            "auto, gloo, nccl or mpi: what carries the collectives",
            parse=BackendName,
            metavar="NAME",
        ),
    )

    survive_on_nccl: bool = field(
        default=False,
        metadata=flagged(
            OptionGroup.STRATEGY,
            f"keep the process when an NCCL group ends; not proven on GPUs (default: ${Env.SURVIVE_ON_NCCL})",
        ),
    )

    workers: int = field(
        default=0,
        metadata=flagged(OptionGroup.DATA, "processes per rank that read samples ahead", parse=int, metavar="N"),
    )
    prefetch: int = field(
        default=2, metadata=flagged(OptionGroup.DATA, "shards that each of them reads ahead", parse=int, metavar="N")
    )
    on_bad_sample: OnBadSample = field(
        default=OnBadSample.FAIL,
        metadata=flagged(OptionGroup.DATA, "what a sample means that cannot be read", parse=OnBadSample),
    )
    balance: BalanceName = field(
        default=BalanceName.STATIC,
        metadata=flagged(OptionGroup.DATA, "dynamic gives a slow rank fewer shards", parse=BalanceName),
    )

    level: Level = field(
        default=Level.ORDERED,
        metadata=flagged(OptionGroup.STRATEGY, "how equal results are at different numbers of ranks", parse=Level),
    )
    strategy: StrategyName = field(
        default=StrategyName.DDP,
        metadata=flagged(OptionGroup.STRATEGY, "how the ranks' copies stay one model", parse=StrategyName),
    )
    parallel: LayoutRange | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.STRATEGY,
            "how the ranks share one model, as in replicate=2,shard=2,tp=2,pp=2; sizes may be ranges, as in 1:4",
            parse=layouts,
            metavar="LAYOUT",
        ),
    )
    fsdp_blocks: tuple[str, ...] | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.STRATEGY,
            "of shard: classes of the blocks that are gathered one at a time (default: the layers of a ModuleList)",
            parse=names,
            metavar="NAME[,NAME]",
        ),
    )
    fsdp_reshard: bool = field(
        default=True,
        metadata=flagged(OptionGroup.STRATEGY, "of shard: let go of a block's weights between forward and backward"),
    )
    fsdp_prefetch: int = field(
        default=0,
        metadata=flagged(
            OptionGroup.STRATEGY,
            "of shard: gather so many blocks ahead of the one that computes",
            parse=int,
            metavar="N",
        ),
    )
    fsdp_offload: bool = field(
        default=False,
        metadata=flagged(OptionGroup.STRATEGY, "of shard: keep the pieces in the CPU's memory, and step there"),
    )
    pipeline_schedule: PipelineSchedule = field(
        default=PipelineSchedule.ONE_F_ONE_B,
        metadata=flagged(
            OptionGroup.STRATEGY, "of pp: in which order stages compute their micro-batches", parse=PipelineSchedule
        ),
    )
    sync_steps: int = field(
        default=8,
        metadata=flagged(
            OptionGroup.STRATEGY, "of local-sgd: steps from one synchronisation to the next", parse=int, metavar="N"
        ),
    )
    find_unused_parameters: bool = field(
        default=False,
        metadata=flagged(OptionGroup.STRATEGY, "some weights take no part in some steps (as DDP's own)"),
    )
    static_graph: bool = field(
        default=False,
        metadata=flagged(OptionGroup.STRATEGY, "every pass uses the same weights in the same order (as DDP's own)"),
    )
    broadcast_buffers: bool = field(
        default=False,
        metadata=flagged(OptionGroup.STRATEGY, "running statistics are rank 0's, not the mean over all shards"),
    )
    bucket_mb: float | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.STRATEGY, "gradients are sent in pieces of this many MiB", parse=float, metavar="X"
        ),
    )
    gradient_as_bucket_view: bool = field(
        default=True,
        metadata=flagged(OptionGroup.STRATEGY, "gradients live in the buffers that are sent: one copy less"),
    )
    sync_batchnorm: bool = field(
        default=False,
        metadata=flagged(OptionGroup.STRATEGY, "BatchNorm normalizes over the samples of all ranks; on GPUs"),
    )

    precision: PrecisionName = field(
        default=PrecisionName.FP32,
        metadata=flagged(OptionGroup.SPEED, "numbers to compute with", parse=PrecisionName),
    )
    micro_batch: int | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.SPEED, "most samples in one pass: larger shards are cut, to save memory", parse=int, metavar="N"
        ),
    )
    activation_checkpointing: bool = field(
        default=False,
        metadata=flagged(OptionGroup.SPEED, "compute activations again in the backward pass, to save memory"),
    )
    recompute: Recompute | int = field(
        default=Recompute.ALL,
        metadata=flagged(
            OptionGroup.SPEED,
            "of --activation-checkpointing: all of each block, cheap (all but matrix products, attention and "
            "convolutions), or N for every N-th block",
            parse=recomputed,
            metavar="WHAT",
        ),
    )
    compile: bool = field(default=False, metadata=flagged(OptionGroup.SPEED, "compile the model with torch.compile"))
    compile_blocks: bool = field(
        default=False,
        metadata=flagged(
            OptionGroup.SPEED,
            "with --compile: each block by itself, as with a model in pieces (--parallel) in any case",
        ),
    )
    compile_backend: str = field(
        default="inductor",
        metadata=flagged(OptionGroup.SPEED, "of torch.compile", parse=str, metavar="NAME"),
    )
    compile_fallback: bool = field(
        default=False,
        metadata=flagged(OptionGroup.SPEED, "train uncompiled where compiling fails"),
    )
    channels_last: bool = field(
        default=False,
        metadata=flagged(OptionGroup.SPEED, "keep images as NHWC in memory, which convolutions on GPUs prefer"),
    )
    optimizer_kernel: KernelName = field(
        default=KernelName.AUTO,
        metadata=flagged(OptionGroup.SPEED, "how the optimizer goes over the weights", parse=KernelName),
    )
    gc_steps: int | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.SPEED,
            "collect garbage on all ranks after every N steps, and at no other time",
            parse=int,
            metavar="N",
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.SPEED,
            "threads of each rank on the CPU (default: its share of the processor; with --level exact 1)",
            parse=int,
            metavar="N",
        ),
    )
    deterministic: bool = field(
        default=False,
        metadata=flagged(OptionGroup.SPEED, "only algorithms that give the same bits on every run"),
    )

    on_nonfinite: OnNonFinite = field(
        default=OnNonFinite.STOP,
        metadata=flagged(OptionGroup.GUARDS, "when a loss or gradient is infinite or not a number", parse=OnNonFinite),
    )
    nonfinite_limit: int = field(
        default=10,
        metadata=flagged(
            OptionGroup.GUARDS,
            "steps skipped in a row, or times rolled back, before the run stops",
            parse=int,
            metavar="N",
        ),
    )

    lr_scaling: LrScaling = field(
        default=LrScaling.NONE,
        metadata=flagged(OptionGroup.RATE, "scale the rate with the global batch", parse=LrScaling),
    )
    lr_reference_batch: int | None = field(
        default=None,
        metadata=flagged(OptionGroup.RATE, "global batch at which the rate is as given", parse=int, metavar="N"),
    )

    @property
    def spreads(self) -> bool:
        """True if the largest layout splits the model, so that no rank holds all of it."""
        return self.parallel is not None and self.parallel.largest.replica > 1
