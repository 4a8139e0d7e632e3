"""End of a worker group: detection, validity of results, and survival of the process.

:class:`GroupTeardown` is the base of :class:`~ddp_trainer.train.distributed.group.Group`. It uses
:mod:`~ddp_trainer.train.distributed.stream_abort` for collectives on device streams.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.common.lint import USE_NCCL2
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.device_selection import is_nccl2
from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from ddp_trainer.train.distributed.group_store import GroupStore
from ddp_trainer.train.distributed.stream_abort import STREAMS, StreamAbort
from ddp_trainer.train.utils.errors import BadConfig, PeerLost, TrainError, end_for_lost_peer

REFORM: Final = "The launcher has to form a new group."

_LEAVE_TIMEOUT: Final = timedelta(seconds=2)
"""Maximum wait for all ranks to complete the last vote of a group that ends by agreement."""


class GroupTeardown:
    """Base class of a worker group that handles its end."""

    rank: int
    world_size: int
    backend: str
    activity: str

    def __init__(self, connections: GlooSockets | None, abort: StreamAbort | None) -> None:
        """Initialize a group that is not broken.

        Args:
            connections: Connections of the group; None for a group of one.
            abort: Aborts collectives that run on a GPU; None if the process cannot survive such a group.
        """
        self.has_lost = False
        """True if the group ended without an agreement of the ranks."""
        self.is_starting = False
        """True until the first step is committed. Until then this process does not survive a group on streams.

        An abort in the first backward pass of DDP can end the process (pytorch#149418). An interrupted first broadcast
        leaves incomplete weights.
        """
        self._connections = connections
        self._abort = abort
        self._meeting: GroupStore | None = None

    @property
    def is_spare(self) -> bool:
        """True if this rank is spare: it has no place in the layout of the group."""
        return self.rank >= self.world_size

    @property
    def is_broken(self) -> bool:
        """True if ranks may be lost, as detected here or reported by the launcher. Any thread may read this."""
        return self.has_lost or (self._connections is not None and self._connections.are_called_off)

    @property
    def can_survive_group_end(self) -> bool:
        """True if this process can keep running when the group ends now."""
        return self.backend not in STREAMS or (self._abort is not None and not self.is_starting)

    @property
    def is_reduction_complete(self) -> bool:
        """True if the work before :meth:`.Group.mark_reduced` in this step was complete before an abort."""
        return self._abort is None or self._abort.is_reduction_complete

    def check_not_aborted(self) -> None:
        """Check that no abort has invalidated the collective result that was read last.

        Raises:
            PeerLost: The group is broken.
        """
        if self._abort is not None and (self.is_broken or self._abort.has_begun):
            raise PeerLost(f"Rank {self.rank} lost a peer {self.activity}: the group was aborted.", hint=REFORM)

    @contextmanager
    def convert_abort_errors(self) -> Iterator[None]:
        """Context that raises PeerLost instead of other errors after an abort.

        Invalid results of aborted collectives can cause any error in the code inside. A TrainError passes through.
        """
        try:
            yield
        except TrainError:
            raise
        except Exception:
            self.check_not_aborted()
            raise

    def free_device(self, *, agreed: bool) -> None:
        """Abort the collectives of this group on the device. Call this before any other use of the device.

        Has no effect if collectives do not run on streams.

        Args:
            agreed: True if all ranks leave after the same step. Then each rank first waits up to 2 s until all ranks
                have the result of the last vote.
        """
        if self._abort is None:
            return
        if agreed and self._meeting is not None and not self.is_spare:
            with suppress(RuntimeError):
                self._meeting.await_all(self.world_size, "left", _LEAVE_TIMEOUT)
        self._abort.finish()


def abort_of(backend: str, env: Environment, device: torch.device) -> StreamAbort | None:
    """Return an abort for collectives on streams; None without streams, or if torch's watchdog stays on.

    Args:
        backend: Name of the backend of the collectives.
        env: Environment of this worker.
        device: Device of this rank.

    Raises:
        BadConfig: The backend is nccl2. How its groups are aborted is not known.
    """
    streams = STREAMS.get(backend)
    if streams is None:
        return None
    if is_nccl2(backend):
        raise BadConfig(
            f"--survive-on-nccl does not work with nccl2, which torch {torch.__version__} uses for the backend "
            f"{backend!r}.",
            hint=f"Leave --survive-on-nccl out, or set {USE_NCCL2}=0 for torch's older NCCL backend.",
        )
    if obstacle := streams.disable_watchdog(os.environ):
        _warn_of_restart(obstacle)
        return None
    return StreamAbort(streams, device, lambda sentence: end_for_lost_peer(sentence, env.error_file))


@cache
def _warn_of_restart(obstacle: str) -> None:
    """Log once per process that it will not survive its group."""
    logging.getLogger(__name__).warning(
        "--survive-on-nccl has no effect, because %s: this process restarts when its group ends.", obstacle
    )


def call_off(connections: GlooSockets, abort: StreamAbort | None) -> None:
    connections.are_called_off = True
    if abort is not None:
        abort.begin()
    connections.call_off()


def destroy_default_group() -> None:
    """Destroy torch's default process group, complete or partly initialized.

    torch frees every group except the first one used by DDP. That group keeps its threads and descriptors until the
    process ends, with and without ``--compile``.
    """
    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    with suppress(RuntimeError, ValueError):
        if abort is not None and _has_streams(dist.get_backend_config()):
            abort()  # destroy_process_group() would wait for collectives that never end
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _has_streams(backends: str) -> bool:
    """Return whether one of the backends of a group runs its collectives on streams.

    >>> [_has_streams(each) for each in ("cuda:nccl", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo")]
    [True, True, False]
    """
    return any(backend.rpartition(":")[2] in STREAMS for backend in backends.split(","))
