"""Types of the values of the trainer's options: names to choose from, and values with a syntax of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.train.utils.errors import BadConfig


class DeviceName(StrEnum):
    """Devices to compute on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class ScheduleName(StrEnum):
    """Learning rate schedules."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


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
    """Same samples in the same steps. Each rank computes its batch slices at once, and nothing else is guaranteed."""


class Recompute(StrEnum):
    """Parts that ``--activation-checkpointing`` recomputes. The option also accepts N, for every N-th block."""

    ALL = "all"
    """Recompute whole blocks."""
    CHEAP = "cheap"
    """Keep the results of matrix products, attention and convolutions, and recompute everything else."""


class OnNonfinite(StrEnum):
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


class BalancerName(StrEnum):
    """Assignments of batch slices to ranks."""

    STATIC = "static"
    DYNAMIC = "dynamic"


class BackendName(StrEnum):
    """Backends of the collectives."""

    AUTO = "auto"
    """NCCL on GPUs, gloo on CPUs."""
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"


class CheckpointMode(StrEnum):
    """Modes of writing a checkpoint: in the background, or while training waits."""

    ASYNC = "async"
    """Training waits for a copy in memory. A thread writes the copy to the disk."""
    SYNC = "sync"


class EvaluateOn(StrEnum):
    """Ranks that evaluate."""

    ALL = "all"
    RANK0 = "rank0"


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Early stopping: end the run after ``patience`` evaluations without a better ``metric``."""

    metric: str
    patience: int

    @classmethod
    def parse(cls, text: str) -> EarlyStop:
        """Parse ``METRIC:PATIENCE``.

        Raises:
            BadConfig: The text has another form, or the patience is 0.
        """
        metric, _, patience = text.rpartition(":")
        if not metric or not patience.isdecimal() or not int(patience):
            raise BadConfig(f"--early-stop is {text!r}.", hint="Give METRIC:PATIENCE, for example loss:3.")
        return cls(metric, int(patience))


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """Range of global steps to profile."""

    start: int
    """First step, counted from 0."""
    count: int

    @classmethod
    def parse(cls, text: str) -> ProfileWindow:
        """Parse ``START:COUNT``.

        Raises:
            BadConfig: The text has another form, or the count is 0.
        """
        start, _, count = text.partition(":")
        if not start.isdecimal() or not count.isdecimal() or not int(count):
            raise BadConfig(f"--profile is {text!r}.", hint="Give START:COUNT in steps, for example 100:5.")
        return cls(int(start), int(count))


def parse_recompute(text: str) -> Recompute | int:
    """Parse the value of ``--recompute``.

    >>> parse_recompute("cheap"), parse_recompute("2")
    (<Recompute.CHEAP: 'cheap'>, 2)

    Raises:
        BadConfig: The text is neither a :class:`Recompute` value nor a positive number.
    """
    if text in list(Recompute):
        return Recompute(text)
    if not text.isdecimal() or int(text) < 1:
        raise BadConfig(f"--recompute is {text!r}.", hint=f"Give {', '.join(Recompute)}, or N for every N-th block.")
    return int(text)


_SMALLER_IS_BETTER: Final = ("loss", "error", "perplexity")


@dataclass(frozen=True, slots=True)
class TargetMetric:
    """A metric of the test samples. Losses, errors and perplexities improve downwards, all others upwards."""

    metric: str

    def is_better(self, value: float, best: float | None) -> bool:
        """Return whether ``value`` is better than the best so far. NaN is never better.

        >>> TargetMetric("loss").is_better(0.1, 0.2), TargetMetric("accuracy").is_better(0.1, 0.2)
        (True, False)
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best if any(word in self.metric for word in _SMALLER_IS_BETTER) else value > best
