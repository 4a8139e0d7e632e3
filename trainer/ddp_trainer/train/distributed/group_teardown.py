"""The end of a group of ranks: who has seen it, what counts afterwards, and whether a process outlives it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from ddp_trainer.train.distributed.group_store import GroupStore
from ddp_trainer.train.distributed.stream_abort import STREAMS, StreamAbort
from ddp_trainer.train.utils.error_file import end_for_lost_peer
from ddp_trainer.train.utils.errors import PeerLost, TrainError

REFORM: Final = "The launcher has to form a new group."

_PARTING: Final = timedelta(seconds=2)
"""For all ranks to be done with the last vote of a group that they agreed to end."""


class EndingGroup:
    """A group, as far as its end is concerned; where collectives run on streams, see :mod:`.stream_abort`."""

    rank: int
    world_size: int
    backend: str
    activity: str

    def __init__(self, connections: GlooSockets | None, abort: StreamAbort | None) -> None:
        """``abort``: how a process gets out that may outlive this group though its collectives run on a GPU."""
        self.has_lost = False
        """Its end was nothing that the ranks agreed on."""
        self.is_starting = False
        """Until the first step counts: an abort in the first backward pass of DDP may end the process (pytorch#149418),
        and weights that a first broadcast has half filled are no state to go on from."""
        self._connections = connections
        self._abort = abort
        self._meeting: GroupStore | None = None

    @property
    def is_spare(self) -> bool:
        """This rank has no place among the others."""
        return self.rank >= self.world_size

    @property
    def is_broken(self) -> bool:
        """Some of the ranks may be gone: this one has seen it, or the launcher has told; any thread's."""
        return self.has_lost or (self._connections is not None and self._connections.are_called_off)

    @property
    def may_be_outlived(self) -> bool:
        """Whether this process may keep running when the group ends now."""
        return self.backend not in STREAMS or (self._abort is not None and not self.is_starting)

    @property
    def had_reduced(self) -> bool:
        """What was marked by :meth:`mark_reduced` in the step under way was done before the group was aborted."""
        return self._abort is None or self._abort.had_reduced

    def begin_step(self) -> None:
        """Nothing of this step is reduced yet."""
        if self._abort is not None:
            self._abort.clear_mark()

    def mark_reduced(self) -> None:
        """All collectives of this step but its vote are begun: :attr:`had_reduced` is whether they were done."""
        if self._abort is not None:
            self._abort.mark()

    def demand_whole(self) -> None:
        """Refuse a result that was read just now, where an abort may have left it in place of that of a collective.

        Raises:
            PeerLost: the group is broken.
        """
        if self._abort is not None and (self.is_broken or self._abort.has_begun):
            raise PeerLost(f"Rank {self.rank} lost a peer {self.activity}: the group was aborted.", hint=REFORM)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Whatever the code inside makes of numbers that an abort has left, a lost peer is the cause of it."""
        try:
            yield
        except TrainError:
            raise
        except Exception:
            self.demand_whole()
            raise

    def free_device(self, *, agreed: bool) -> None:
        """End what runs on the device for this group, before anything else there is touched; nothing without streams.

        ``agreed``: all ranks leave after the same step, and none before another one has the last word of the vote.
        """
        if self._abort is None:
            return
        if agreed and self._meeting is not None and not self.is_spare:
            with suppress(RuntimeError):
                self._meeting.await_all(self.world_size, "left", _PARTING)
        self._abort.finish()


def abort_of(backend: str, env: Environment, device: torch.device) -> StreamAbort | None:
    """None where no stream is waited for, or where something else would end this process while it leaves."""
    streams = STREAMS.get(backend)
    if streams is None or not streams.leave_errors_to_launcher(os.environ):
        return None
    return StreamAbort(streams, device, lambda sentence: end_for_lost_peer(sentence, env.error_file))


def call_off(connections: GlooSockets, abort: StreamAbort | None) -> None:
    connections.are_called_off = True
    if abort is not None:
        abort.begin()
    connections.cut()


def leave_default_group() -> None:
    """Take down what is there of torch's process group, whole or half made.

    torch lets go of it, but for the first one that DDP was built on: that one keeps its threads and descriptors for as
    long as the process lives, with ``--compile`` and without. Of later groups nothing stays.
    """
    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    with suppress(RuntimeError, ValueError):
        if abort is not None and _has_streams(dist.get_backend_config()):
            abort()  # destroying would wait for collectives that never end
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _has_streams(backends: str) -> bool:
    """Return whether one of the backends of a group runs its collectives on streams.

    >>> [_has_streams(each) for each in ("cuda:nccl", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo")]
    [True, True, False]
    """
    return any(each.rpartition(":")[2] in STREAMS for each in backends.split(","))
