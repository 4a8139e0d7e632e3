"""gloo process group whose collectives can be aborted, for the ranks along a mesh dimension.

When a connection breaks, gloo fails waits for messages that have not started. It does not fail waits for messages in
transfer, because ``Pair::signalException`` in its ``transport/tcp/pair.cc`` ignores ``tx_`` and ``rx_``. Those waits,
and the main thread with them, last until the timeout of the group. One lost peer in eight hit such a moment with tensor
parallelism, one in sixty with FSDP. So a wait in :class:`AbortableGloo` polls whether the group is over, and then
abandons gloo's thread. :func:`new_group` creates a group.

The class follows the custom process groups of torch's ``test_c10d_pypg.py``. It has to override every collective that
``PyProcessGroup.hpp`` allows. torch calls its own implementations with the GIL held. gloo's threads wait for the GIL
while they hold what that call waits for: a deadlock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

NAME: Final = "ddp_gloo"
"""Name under which the backend is registered in torch."""

_POLL_INTERVAL: Final = timedelta(seconds=0.1)
"""Interval between checks whether the group is over. A collective that ends earlier returns immediately."""

_LEFT: Final = "gloo has not noticed that the group is over"


def new_group(ranks: Sequence[int], timeout: timedelta, is_over: Callable[[], bool]) -> dist.ProcessGroup | None:
    """Create an abortable gloo group. Every rank of the default group must call this.

    Args:
        ranks: Global ranks of the group.
        timeout: Timeout of its collectives.
        is_over: Returns True when waits in the group must fail.

    Returns:
        The group, or None on ranks outside of it.
    """
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create_group, extended_api=True, devices=["cpu", "cuda"])
    group = dist.new_group(list(ranks), timeout=timeout, backend=NAME, pg_options=is_over)
    return group if isinstance(group, AbortableGloo) else None


def _create_group(options: Any, is_over: Callable[[], bool]) -> AbortableGloo:
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()  # noqa: SLF001 - as torch does for its own groups
    return AbortableGloo(gloo, is_over)


def _abortable_method(name: str) -> Callable[..., Any]:
    """Return a method that calls the gloo method of this name and returns an abortable work."""

    def begin(group: AbortableGloo, *args: Any, **options: Any) -> dist.Work:
        return group.exchange([getattr(group.gloo, name)(*args, **options)])

    return begin


def _left_to_gloo(name: str) -> Callable[..., Any]:
    """Return a method that calls the gloo method of this name and returns gloo's own work, which cannot be aborted."""

    def begin(group: AbortableGloo, *args: Any, **options: Any) -> dist.Work:
        return cast("dist.Work", getattr(group.gloo, name)(*args, **options))

    return begin


class AbortableGloo(dist.ProcessGroup):
    """gloo process group with abortable waits for the collectives of tensor parallelism, FSDP and replicas.

    Point-to-point messages, ``alltoall`` and ``reduce_scatter`` are passed to gloo and cannot be aborted.
    """

    allgather = _abortable_method("allgather")
    allreduce = _abortable_method("allreduce")
    allreduce_coalesced = _abortable_method("allreduce_coalesced")
    alltoall_base = _abortable_method("alltoall_base")
    barrier = _abortable_method("barrier")
    broadcast = _abortable_method("broadcast")
    gather = _abortable_method("gather")
    reduce = _abortable_method("reduce")
    scatter = _abortable_method("scatter")
    # Not polled: when a wait for a point-to-point message times out, gloo breaks its connection.
    send = _left_to_gloo("send")
    recv = _left_to_gloo("recv")
    recv_anysource = recvAnysource = _left_to_gloo("recv_anysource")  # noqa: N815 - name from torch
    # Not polled: gloo has no way to query the completion of these.
    alltoall = _left_to_gloo("alltoall")
    reduce_scatter = _left_to_gloo("reduce_scatter")

    def __init__(self, gloo: dist.ProcessGroupGloo, is_over: Callable[[], bool]) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg] # the stubs have only one of its two overloads
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # the backend that counts started collectives
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
        self.gloo: Any = gloo  # torch's stubs are incomplete
        self.is_over = is_over
        self._exchanges: weakref.WeakSet[_Exchange] = weakref.WeakSet()

    def getBackendName(self) -> str:  # noqa: N802 - name from torch
        """Return the name of the backend, for torch."""
        return NAME

    def allgather_into_tensor_coalesced(  # type: ignore[override] # the signature that torch calls
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        """Gather each input from all ranks into the output of the same index, in rank order.

        Args:
            outputs: Tensors that are overwritten, each with ``size()`` times the elements of its input.
            inputs: Tensors of this rank, of any shape; their shapes and dtypes are the same on all ranks.
            opts: torch's ``AllgatherOptions``.

        Returns:
            The pending work.
        """
        size = self.size()
        return self.exchange(
            [
                self.gloo.allgather([list(output.view(size, *own.shape).unbind())], [own], opts)
                for output, own in zip(outputs, inputs, strict=True)
            ]
        )

    def reduce_scatter_tensor_coalesced(  # type: ignore[override] # as above
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        """Reduce each input over ranks and write this rank's part to the output.

        It uses an all-reduce, because gloo has no faster way.

        Args:
            outputs: Tensors that are overwritten, each with the elements of its input divided by ``size()``.
            inputs: Tensors of this rank, of any shape; unchanged.
            opts: torch's ``ReduceScatterOptions``; only the operation is used.

        Returns:
            The pending work.
        """
        sums = [own.clone() for own in inputs]
        options = dist.AllreduceOptions()
        options.reduceOp = opts.reduceOp

        def cut() -> None:
            for output, added in zip(outputs, sums, strict=True):
                output.copy_(added.view(self.size(), *output.shape)[self.rank()])

        return self.exchange([self.gloo.allreduce([tensor], options) for tensor in sums], cut)

    def all_gather_single(  # type: ignore[override] # as above
        self, output: Tensor, own: Tensor, opts: Any
    ) -> dist.Work:
        """Gather the tensors of all ranks into the output, in rank order.

        Args:
            output: Tensor that is overwritten, with ``size()`` times the elements of ``own``.
            own: Tensor of this rank, of any shape.
            opts: torch's ``AllgatherOptions``.

        Returns:
            The pending work.
        """
        return self.allgather_into_tensor_coalesced([output], [own], opts)

    def reduce_scatter_single(self, output: Tensor, own: Tensor, opts: Any) -> dist.Work:
        """Reduce the tensor over ranks and write this rank's part to the output.

        Args:
            output: Tensor that is overwritten, with the elements of ``own`` divided by ``size()``.
            own: Tensor of this rank, of any shape; unchanged.
            opts: torch's ``ReduceScatterOptions``; only the operation is used.

        Returns:
            The pending work.
        """
        return self.reduce_scatter_tensor_coalesced([output], [own], opts)

    _allgather_base: Callable[..., Any] = all_gather_single
    _reduce_scatter_base: Callable[..., Any] = reduce_scatter_single

    def release_pending_work(self) -> None:
        """Abandon all pending collectives and release their buffers, because the group is over."""
        for exchange in list(self._exchanges):
            exchange.abandon()

    def keep_until_complete(self, works: Sequence[dist.Work]) -> None:
        """Keep the gloo group alive until the works that are stuck in it have ended."""
        if stuck := [work for work in works if not work.is_completed()]:
            # The last reference joins gloo's threads when it is dropped. That must not block the main thread.
            threading.Thread(target=_await_all, args=(self.gloo, stuck), name="ddp-gloo", daemon=True).start()

    def exchange(self, works: Sequence[dist.Work], finish: Callable[[], None] = lambda: None) -> _Exchange:
        """Return one abortable work for several gloo works. ``finish`` runs after they have completed."""
        exchange = _Exchange(self, works, finish)
        self._exchanges.add(exchange)
        return exchange


class _Exchange(dist.Work):
    """Work of an :class:`AbortableGloo` group, made of one or more gloo works."""

    def __init__(self, group: AbortableGloo, works: Sequence[dist.Work], finish: Callable[[], None]) -> None:
        super().__init__()
        self._group: AbortableGloo | None = group
        """None when done or abandoned. torch never frees a work without a wait, and it must not keep the gloo group."""
        self._works = works
        self._finish: Callable[[], None] | None = finish
        self._is_left = False

    def wait(self, timeout: timedelta = timedelta()) -> bool:  # noqa: ARG002 - the timeout of the group applies
        """Wait for the collective, then run ``finish``.

        Raises:
            RuntimeError: The collective failed, or the group is over.
        """
        if self._is_left:
            raise RuntimeError(_LEFT)
        if self._group is None or self._finish is None:
            return True
        try:
            for work in self._works:
                _await(work, self._group.is_over)
        except BaseException:
            self.abandon()
            raise
        self._finish()
        self._drop()
        return True

    def abandon(self) -> None:
        """Abandon the wait for this collective."""
        if self._group is not None:
            self._group.keep_until_complete(self._works)
            self._is_left = True
            self._drop()

    def _drop(self) -> None:
        self._group, self._works, self._finish = None, (), None


def _await(work: dist.Work, is_over: Callable[[], bool]) -> None:
    while not work.is_completed():
        with suppress(RuntimeError):  # not complete yet, or failed: the last line raises that
            work.wait(_POLL_INTERVAL)
        if not work.is_completed() and is_over():
            raise RuntimeError(_LEFT)
    work.wait()


def _await_all(gloo: dist.ProcessGroupGloo, works: Sequence[dist.Work]) -> None:
    """Hold a reference to the group until its works or this process end."""
    for work in works:
        with suppress(RuntimeError):
            work.wait()
    del gloo
