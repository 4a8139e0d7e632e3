"""Conversion of errors of collectives: the network failed, a peer is lost, or an error of this process.

:func:`raise_converted` is the entry point. :mod:`~ddp_trainer.train.distributed.device_errors` classifies the errors.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

import torch.distributed as dist

from ddp_trainer.train.distributed.device_errors import can_be_peer_loss, limit_exit, to_train_error
from ddp_trainer.train.distributed.group_teardown import REFORM
from ddp_trainer.train.utils.errors import GpuFailed, PeerLost

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
