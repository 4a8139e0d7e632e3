"""Errors of a training run and their exit codes.

::

    TrainError                  1   base class
    ├─ BadConfig                2   invalid flag, environment variable or combination of them
    ├─ BadTask                  2   the task is not found or is not a task
    ├─ BadData                  2   the samples are missing or cannot be read
    │  └─ BadSample             2   one sample cannot be read; it can be skipped
    ├─ LoaderWorkerLost         1   a loader worker died
    ├─ CheckpointMismatch       2   the checkpoint belongs to another run
    ├─ WrongSamples             1   the ranks processed other samples than the step requires
    ├─ NonFiniteLoss                1   the loss is infinite or not a number
    ├─ CheckpointNotWritten     1   the final state of the run could not be saved
    ├─ GpuFailed              173   the GPU of this rank failed or is missing; retryable on another node
    ├─ PeerLost               170   another rank ended or does not respond; retryable
    │  ├─ PeerFailed          170   another rank reported that its part of the step failed
    │  └─ GroupEnded           143   planned end of the group, after a step that all ranks agreed on
    ├─ StorageError             1   an object store answered with an error
    │  ├─ StorageUnavailable    1   it cannot be reached, or fails for a time; requests are repeated
    │  ├─ StorageFull           1   its quota or disk is full
    │  ├─ ObjectMissing         1   there is no such object
    │  ├─ ObjectExists          1   a conditional write found an object
    │  ├─ ConditionUnsupported  1   it has no conditional writes
    │  └─ StorageConfigError    2   package, credentials, region, bucket, permission or clock
    ├─ StaleGeneration        172   a newer worker group owns the checkpoint directory
    └─ InvalidLease             2   the claim on the checkpoint directory cannot be parsed

Each message is one sentence that names the value. ``hint`` is the next step for the user.

:func:`report_error` reports the error that ends a rank, on stderr and in torch's error file for the launcher, and
returns the exit code; :func:`exit_without_teardown` also ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import ClassVar, NoReturn

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.gpu_faults import fault_in


class TrainError(Exception):
    """Base class of all errors that a run reports as one sentence."""

    exit_code: ClassVar[int] = Exit.FAILURE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message followed by the hint."""
        return f"{self.message} {self.hint}".strip()


class BadConfig(TrainError):
    """A flag, an environment variable, or a combination of them is invalid."""

    exit_code = Exit.USAGE


class BadTask(TrainError):
    """The task is not found, or the object found is not a task."""

    exit_code = Exit.USAGE


class BadData(TrainError):
    """The samples are missing or cannot be read."""

    exit_code = Exit.USAGE


class BadSample(BadData):
    """One sample cannot be read. Raised by data sets; ``--on-bad-sample`` selects how a run handles it."""


class LoaderWorkerLost(TrainError):
    """A loader worker of this rank died."""


class CheckpointMismatch(TrainError):
    """The checkpoint was written by a run with another task, model, seed, batch or data."""

    exit_code = Exit.USAGE


class WrongSamples(TrainError):
    """The ranks together processed other samples than the step requires."""


class NonFiniteLoss(TrainError):
    """The loss of a step is infinite or not a number."""


class CheckpointNotWritten(TrainError):
    """The final state of the run could not be written to disk."""


class GpuFailed(TrainError):
    """The GPU of this rank failed or is missing. The process cannot join another group."""

    exit_code = Exit.GPU_FAULT


class PeerLost(TrainError):
    """A collective failed because another rank ended or did not respond within the timeout."""

    exit_code = Exit.RENDEZVOUS_LOST

    def without_traceback(self) -> PeerLost:
        """Return a copy without traceback, whose frames would keep all their local objects alive."""
        return type(self)(self.message, hint=self.hint)


class PeerFailed(PeerLost):
    """Another rank voted that its part of the step failed. That rank reports the cause."""


class GroupEnded(PeerLost):
    """The worker group ends as planned, without a failure, because nodes join or leave."""

    exit_code = Exit.TERMINATED


class StorageError(TrainError):
    """An object store answered with an error."""


class StorageUnavailable(StorageError):
    """An object store cannot be reached, or fails for a time. The same request may succeed later."""


class StorageFull(StorageError):
    """An object store has no room: a quota or its disk is full."""


class ObjectMissing(StorageError):
    """An object store has no such object."""


class ObjectExists(StorageError):
    """A conditional write found an object, and replaced nothing."""


class ConditionUnsupported(StorageError):
    """An object store does not support conditional writes."""


class StorageConfigError(StorageError):
    """An object store cannot be used as configured. A package, credentials, region, bucket or permission is wrong."""

    exit_code = Exit.USAGE


class StaleGeneration(TrainError):
    """A newer worker group owns the checkpoint directory. This one must not write to it."""

    exit_code = Exit.STALE_GENERATION


class InvalidLease(TrainError):
    """The claim file of the checkpoint directory cannot be parsed, so the order of its writers is unknown."""

    exit_code = Exit.USAGE


def write_error_file(file: Path | None, err: BaseException) -> None:
    """Write the error for the launcher in the format of torch.distributed.elastic; OSErrors are ignored."""
    if file is None:
        return
    reason = {
        "message": f"{type(err).__name__}: {err}",
        "extraInfo": {
            "py_callstack": "".join(traceback.format_exception(err)),
            "timestamp": str(int(time.time())),
        },
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"message": reason}))
    except OSError:
        return


def named_error_file() -> Path | None:
    """Return the error file of this process, from ``$TORCHELASTIC_ERROR_FILE``, or None."""
    named = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    return Path(named) if named else None


def code_of(err: BaseException) -> int:
    """Return the exit code for an uncaught exception.

    A CUDA error that is raised in the model is not translated to GpuFailed. It maps to the same exit code.
    """
    if isinstance(err, TrainError):
        return int(err.exit_code)
    return int(Exit.GPU_FAULT if isinstance(err, RuntimeError) and fault_in(str(err)) else Exit.FAILURE)


def report_error(err: Exception, error_file: Path | None) -> int:
    """Print the error, write the error file, and return the exit code.

    A :class:`TrainError` is printed as one sentence, any other exception with its traceback.
    """
    if isinstance(err, TrainError):
        print(f"error: {err}", file=sys.stderr)
    else:
        traceback.print_exception(err)
    write_error_file(error_file, err)
    return code_of(err)


def end_for_lost_peer(sentence: str, error_file: Path | None) -> NoReturn:
    """End this process with the exit code of :class:`PeerLost`, from any thread.

    Used when the process cannot leave its group in any other way. The exit code lets the launcher start another one.
    """
    exit_without_teardown(PeerLost(sentence), error_file)


def exit_without_teardown(err: Exception, error_file: Path | None) -> NoReturn:
    """Report the error and end this process with its exit code, without tearing down the process group.

    An orderly teardown is impossible here, and the launcher waits for the exit.
    """
    code = report_error(err, error_file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
