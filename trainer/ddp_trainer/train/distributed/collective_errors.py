"""Conversion of errors of collectives: a lost peer, a failed GPU, an invalid NCCL setup, or an error of this process.

:func:`raise_converted` is the entry point. CUDA reports errors of kernels at a later call, mostly where a result is
read: in the vote of the ranks.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Final, NoReturn

import torch
import torch.distributed as dist

from ddp_trainer.common.gpu_faults import cause_line, fault_in, is_out_of_gpu_memory, nccl_config_error
from ddp_trainer.train.distributed.group_teardown import REFORM
from ddp_trainer.train.utils.errors import (
    BadConfig,
    GpuFailed,
    PeerLost,
    TrainError,
    exit_without_teardown,
    named_error_file,
)

EXIT_SECONDS: Final = 20.0
"""Maximum time to the exit of a process with a failed GPU, since its cleanup can block on the GPU."""


def to_train_error(err: RuntimeError, who: str) -> TrainError | None:
    """Return the error to raise instead of a CUDA or NCCL error that is not caused by a lost peer.

    Args:
        err: Error of a collective or of a pass through the model.
        who: The rank, as the subject of the message.

    Returns:
        GpuFailed or BadConfig, or None for all other errors.
    """
    text = str(err)
    if isinstance(err, torch.OutOfMemoryError) or is_out_of_gpu_memory(text):
        return None
    if fault := fault_in(text):
        return GpuFailed(f"{who} cannot use its GPU: {cause_line(text)}.", hint=f"Fix: {fault.fix}.")
    if refusal := nccl_config_error(text, os.environ.get("NCCL_NET", "")):
        return BadConfig(f"{who}: NCCL {refusal.what}.", hint=f"Fix: {refusal.fix}.")
    return None


def can_be_peer_loss(err: RuntimeError) -> bool:
    """Return whether a lost peer can be the cause of this error of a collective.

    torch reports a lost peer as a ``DistError``, or, over gloo, as a plain RuntimeError. Other subclasses of
    RuntimeError, such as ``AcceleratorError`` and ``OutOfMemoryError``, are errors of this process.
    """
    if is_out_of_gpu_memory(str(err)):
        return False
    return type(err) is RuntimeError or isinstance(err, dist.DistError)


def limit_exit(err: GpuFailed) -> None:
    """Start a timer that ends this process with the exit code of the error after :data:`EXIT_SECONDS`."""
    timer = threading.Timer(EXIT_SECONDS, exit_without_teardown, (err, named_error_file()))
    timer.daemon = True
    timer.start()


_NETWORK: Final = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused)|broken pipe|socket|timed? ?out|process group", re.IGNORECASE
)
"""gloo reports a lost peer as a plain RuntimeError. In a DDP pass only the message distinguishes it from a bug."""

_ADVICE: Final = re.compile(r"\. This (?:is typically|may indicate|typically).*")
"""Advice that gloo appends to every error of a lost connection."""

_SOURCE_LINE: Final = re.compile(r"^(?:\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\]\s*)+")
"""Source location at the start of a torch message, which does not help the user."""


def raise_converted(err: RuntimeError, who: str, failed: str, *, is_loss: bool) -> NoReturn:
    """Raise PeerLost, GpuFailed or BadConfig instead of the error of a collective; any other error as it is.

    Args:
        err: The error.
        who: The rank, as the subject of the message.
        failed: What the rank could not do, as the rest of the message.
        is_loss: A lost peer is the cause, unless a CUDA or NCCL error of this process is.
    """
    error = to_train_error(err, who)
    if isinstance(error, GpuFailed):
        limit_exit(error)
    if error is None and is_loss:
        error = PeerLost(f"{who} {failed}: {reason(str(err))}.", hint=REFORM)
    if error is None:
        raise err
    raise error from err


def is_network(err: RuntimeError) -> bool:
    """Return whether a collective raised this error, not user code."""
    if not can_be_peer_loss(err):
        return False
    if isinstance(err, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError):
        return True
    return type(err) is RuntimeError and _NETWORK.search(str(err)) is not None


def reason(text: str) -> str:
    """Return the first line of a torch message, without source location and advice.

    >>> reason("[/src/gloo/pair.cc:537] Read error [10.0.0.7]:4242: Connection reset by peer. This is typically ...")
    'Read error [10.0.0.7]:4242: Connection reset by peer'
    """
    first = (text.strip().splitlines() or ["no reason was given"])[0]
    return _ADVICE.sub("", _SOURCE_LINE.sub("", first)).rstrip(". ")
