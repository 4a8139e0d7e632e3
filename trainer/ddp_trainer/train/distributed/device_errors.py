"""Classification of errors raised in collectives: lost peer, failed GPU, invalid NCCL setup, or a bug in the code.

CUDA reports errors of kernels at a later call, mostly where a result is read: in the vote of the ranks.
:func:`to_train_error` is the entry point; :mod:`~ddp_trainer.train.distributed.collective_errors` uses it for the
errors of every collective.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.common.gpu_faults import cause_line, fault_in, is_out_of_gpu_memory, nccl_config_error
from ddp_trainer.train.utils.error_file import exit_without_teardown, named_error_file
from ddp_trainer.train.utils.errors import BadConfig, GpuFailed, TrainError

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


def limit_exit(err: GpuFailed, seconds: float = EXIT_SECONDS) -> None:
    """Start a timer that ends this process with the exit code of the error after ``seconds``."""
    timer = threading.Timer(seconds, exit_without_teardown, (err, named_error_file()))
    timer.daemon = True
    timer.start()
