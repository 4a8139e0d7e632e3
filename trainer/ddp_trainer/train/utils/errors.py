"""What can go wrong in a training run, and what its process exits with.

::

    TrainError                  1   anything that follows
    ├─ BadConfig                2   a flag, a variable or a combination of them that cannot be meant
    ├─ BadTask                  2   the task cannot be found, or is not one
    ├─ BadData                  2   the samples are missing or cannot be read
    │  └─ BadSample             2   one sample cannot be read; may be skipped
    ├─ DataWorkerLost           1   a process that reads samples died
    ├─ CheckpointMismatch       2   the checkpoint belongs to another run
    ├─ WrongSamples             1   the ranks processed other samples than the step demands
    ├─ NotFinite                1   the loss is no longer a number
    ├─ CheckpointNotWritten     1   the last state of the run could not be saved
    ├─ GpuFailed              173   the GPU of this rank failed or is missing, retryable elsewhere
    ├─ PeerLost               170   another rank went away or stayed silent: not this rank's fault, retryable
    │  ├─ PeerFailed          170   another rank said that its part of the step failed
    │  └─ GroupEnds           143   the group was told to end, and all ranks agreed after which step
    ├─ StaleGeneration        172   a newer worker group owns the checkpoint directory
    └─ DamagedClaim             2   the claim on the checkpoint directory cannot be parsed

Each message is one sentence that names the value; ``hint`` says what to do next.
"""

from __future__ import annotations

from typing import ClassVar

from ddp_trainer.common.constants import Exit


class TrainError(Exception):
    """Base of every error that a run reports in one sentence."""

    exit_code: ClassVar[int] = Exit.FAILURE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The sentence, and what to do next."""
        return f"{self.message} {self.hint}".strip()


class BadConfig(TrainError):
    """A flag, an environment variable or a combination of them that cannot be meant."""

    exit_code = Exit.USAGE


class BadTask(TrainError):
    """The task cannot be found, or what was found is not a task."""

    exit_code = Exit.USAGE


class BadData(TrainError):
    """The samples are missing, or cannot be read."""

    exit_code = Exit.USAGE


class BadSample(BadData):
    """One sample cannot be read; a data set raises it, and ``--on-bad-sample`` says what it means."""


class DataWorkerLost(TrainError):
    """A process that reads samples for this rank died."""


class CheckpointMismatch(TrainError):
    """The checkpoint was written by a run of another task, model, seed, batch or data."""

    exit_code = Exit.USAGE


class WrongSamples(TrainError):
    """The samples that the ranks processed together are not the ones that the step demands."""


class NotFinite(TrainError):
    """The loss of a step is infinite or not a number."""


class CheckpointNotWritten(TrainError):
    """The last state of the run could not be made durable."""


class GpuFailed(TrainError):
    """The GPU of this rank failed, or is not there. The process has no use for another group."""

    exit_code = Exit.GPU_FAULT


class PeerLost(TrainError):
    """A collective failed because another rank went away, or stayed silent for too long."""

    exit_code = Exit.RENDEZVOUS_LOST

    def alone(self) -> PeerLost:
        """The same without the frames that it came through, which keep everything alive that they worked with."""
        return type(self)(self.message, hint=self.hint)


class PeerFailed(PeerLost):
    """Another rank voted that its part of the step failed; it reports why itself."""


class GroupEnds(PeerLost):
    """This group is over, and nobody's fault is it: nodes come or go."""

    exit_code = Exit.TERMINATED


class StaleGeneration(TrainError):
    """A newer worker group owns the checkpoint directory; this one must not write."""

    exit_code = Exit.STALE_GENERATION


class DamagedClaim(TrainError):
    """The claim file of the checkpoint directory cannot be parsed, so the order of its writers is not known."""

    exit_code = Exit.USAGE
