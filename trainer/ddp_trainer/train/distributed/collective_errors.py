"""Conversion of errors of collectives: the network failed, a peer is lost, or an error of this process.

:func:`convert_errors` is the entry point. :mod:`~ddp_trainer.train.distributed.device_errors` classifies the errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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


@contextmanager
def convert_errors(who: str, failed: str) -> Iterator[None]:
    """Context for collectives, which raises PeerLost, GpuFailed or BadConfig instead of torch's errors.

    Args:
        who: The rank, as the subject of the message.
        failed: What the rank could not do, as the rest of the message.
    """
    try:
        yield
    except RuntimeError as err:
        raise_train_error(err, who)
        if can_be_peer_loss(err):
            raise peer_lost(f"{who} {failed}", err) from err
        raise


def is_network(err: RuntimeError) -> bool:
    """Return whether a collective raised this error, not user code."""
    if not can_be_peer_loss(err):
        return False
    if isinstance(err, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError):
        return True
    return type(err) is RuntimeError and _NETWORK.search(str(err)) is not None


def raise_train_error(err: RuntimeError, who: str) -> None:
    """Raise the trainer's error instead of a CUDA or NCCL error that is not caused by a lost peer, if it is one."""
    error = to_train_error(err, who)
    if isinstance(error, GpuFailed):
        limit_exit(error)
    if error is not None:
        raise error from err


def peer_lost(what: str, err: RuntimeError) -> PeerLost:
    """Return the error for a lost peer, with the reason in torch's message."""
    return PeerLost(f"{what}: {reason(str(err))}.", hint=REFORM)


def reason(text: str) -> str:
    """Return the first line of a torch message, without source location and advice.

    >>> reason("[/src/gloo/pair.cc:537] Read error [10.0.0.7]:4242: Connection reset by peer. This is typically ...")
    'Read error [10.0.0.7]:4242: Connection reset by peer'
    """
    first = (text.strip().splitlines() or ["no reason was given"])[0]
    return _ADVICE.sub("", _SOURCE_LINE.sub("", first)).rstrip(". ")
