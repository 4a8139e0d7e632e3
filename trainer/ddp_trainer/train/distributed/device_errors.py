"""Errors that surface in a collective, told apart: a lost peer, a failed GPU, a refusal of NCCL, the code itself.

CUDA reports errors of kernels at a later call, mostly where a result is read: in the vote. :func:`translated` is the
entry point; :class:`~ddp_trainer.train.distributed.group.Group` uses it around every collective.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.common.gpu_faults import cause_line, fault_in, is_out_of_gpu_memory, refusal_in
from ddp_trainer.train.utils.error_file import leave_group, named_error_file
from ddp_trainer.train.utils.errors import BadConfig, GpuFailed, TrainError

EXIT_SECONDS: Final = 20.0
"""A process with a failed GPU ends after at most so long: whatever it closes may wait for the GPU."""


def translated(err: RuntimeError, who: str) -> TrainError | None:
    """Return the error to raise for one of CUDA or NCCL that no lost peer explains; None for every other.

    Args:
        err: What a collective or a pass through the model raised.
        who: The rank, as the subject of a sentence.
    """
    text = str(err)
    if isinstance(err, torch.OutOfMemoryError) or is_out_of_gpu_memory(text):
        return None
    if fault := fault_in(text):
        return GpuFailed(f"{who} cannot use its GPU: {cause_line(text)}.", hint=f"Fix: {fault.fix}.")
    if refusal := refusal_in(text, os.environ.get("NCCL_NET", "")):
        return BadConfig(f"{who}: NCCL {refusal.what}.", hint=f"Fix: {refusal.fix}.")
    return None


def may_be_peers(err: RuntimeError) -> bool:
    """Return whether a collective that fails with this error may have lost a peer.

    torch reports a lost peer as a ``DistError``, or, over gloo, as a plain RuntimeError. Its other subclasses, such as
    ``AcceleratorError`` and ``OutOfMemoryError``, are errors of this process.
    """
    if is_out_of_gpu_memory(str(err)):
        return False
    return type(err) is RuntimeError or isinstance(err, dist.DistError)


def limit_exit(err: GpuFailed, seconds: float = EXIT_SECONDS) -> None:
    """End this process with the error's exit code unless it has ended after so many seconds."""
    timer = threading.Timer(seconds, leave_group, (err, named_error_file()))
    timer.daemon = True
    timer.start()
