"""gloo, with a way out of what waits: for exchanges between slices, of which a step has hundreds.

When a connection breaks, gloo wakes whoever waits for a message that is not begun, but nobody who waits for one that it
has begun to send or to receive (``Pair::signalException`` in its ``transport/tcp/pair.cc`` knows neither ``tx_`` nor
``rx_``): these wait for the group's timeout, and the main thread for them. Of slices one loss in eight fell into such a
moment. So whoever waits here looks from time to time whether the group is over, and then leaves gloo's thread where it
stands.

Made as torch's ``test_c10d_pypg.py`` makes process groups of one's own. Whatever of such a group Python may write anew
(``PyProcessGroup.hpp``) has to be here: torch calls its own with the GIL held, which gloo's threads wait for while they
hold what it waits for.
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
"""What torch calls this backend."""

_LOOK: Final = timedelta(seconds=0.1)
"""Between looks whether the group is over; who is answered before does not wait for it."""

_LEFT: Final = "gloo has not noticed that the group is over"


def new_group(ranks: Sequence[int], timeout: timedelta, is_over: Callable[[], bool]) -> dist.ProcessGroup | None:
    """A group of these ranks, which gives up what it waits for when ``is_over``; every rank must call it.

    Returns:
        None on the ranks that are not in it.
    """
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _made, extended_api=True, devices=["cpu", "cuda"])
    group = dist.new_group(list(ranks), timeout=timeout, backend=NAME, pg_options=is_over)
    return group if isinstance(group, AbortableGloo) else None


def _made(options: Any, is_over: Callable[[], bool]) -> AbortableGloo:
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()  # noqa: SLF001 - as torch does of its own
    return AbortableGloo(gloo, is_over)


def _begun(name: str) -> Callable[..., Any]:
    """The method of gloo's of this name, whose exchange can be given up."""

    def begin(group: AbortableGloo, *args: Any, **options: Any) -> dist.Work:
        return group.exchange([getattr(group.gloo, name)(*args, **options)])

    return begin


def _left_to_gloo(name: str) -> Callable[..., Any]:
    """The method of gloo's of this name as it is."""

    def begin(group: AbortableGloo, *args: Any, **options: Any) -> dist.Work:
        return cast("dist.Work", getattr(group.gloo, name)(*args, **options))

    return begin


class AbortableGloo(dist.ProcessGroup):
    """One group, of whose exchanges most can be given up: all that ``torch.distributed.tensor`` makes of layers."""

    allgather = _begun("allgather")
    allreduce = _begun("allreduce")
    allreduce_coalesced = _begun("allreduce_coalesced")
    alltoall_base = _begun("alltoall_base")
    barrier = _begun("barrier")
    broadcast = _begun("broadcast")
    gather = _begun("gather")
    reduce = _begun("reduce")
    scatter = _begun("scatter")
    # gloo breaks a connection on which a wait for one of these ran out,
    send = _left_to_gloo("send")
    recv = _left_to_gloo("recv")
    recv_anysource = recvAnysource = _left_to_gloo("recv_anysource")  # noqa: N815 - torch's
    # and has nothing that could be asked whether one of these is through.
    alltoall = _left_to_gloo("alltoall")
    reduce_scatter = _left_to_gloo("reduce_scatter")

    def __init__(self, gloo: dist.ProcessGroupGloo, is_over: Callable[[], bool]) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg] # the stubs know one of its two ways
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # which counts what was begun
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
        self.gloo: Any = gloo  # torch's stubs know half of it
        self.is_over = is_over
        self._exchanges: weakref.WeakSet[_Exchange] = weakref.WeakSet()

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        """How torch speaks of it."""
        return NAME

    def allgather_into_tensor_coalesced(  # type: ignore[override] # torch calls it so
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        """Into each output the inputs of all ranks, in rank order."""
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
        """Into each output this rank's part of what the inputs come to over ranks; gloo has no better way to it."""
        whole = [own.clone() for own in inputs]
        asked = dist.AllreduceOptions()
        asked.reduceOp = opts.reduceOp

        def cut() -> None:
            for output, added in zip(outputs, whole, strict=True):
                output.copy_(added.view(self.size(), *output.shape)[self.rank()])

        return self.exchange([self.gloo.allreduce([each], asked) for each in whole], cut)

    def all_gather_single(  # type: ignore[override] # as above
        self, output: Tensor, own: Tensor, opts: Any
    ) -> dist.Work:
        """Into the output the tensors of all ranks, in rank order."""
        return self.allgather_into_tensor_coalesced([output], [own], opts)

    def reduce_scatter_single(self, output: Tensor, own: Tensor, opts: Any) -> dist.Work:
        """Into the output this rank's part of what the tensors come to over ranks."""
        return self.reduce_scatter_tensor_coalesced([output], [own], opts)

    _allgather_base: Callable[..., Any] = all_gather_single
    _reduce_scatter_base: Callable[..., Any] = reduce_scatter_single

    def let_go(self) -> None:
        """The group is over: what was begun is waited for by nobody, and what it holds goes with it."""
        for exchange in list(self._exchanges):
            exchange.leave()

    def outlast(self, works: Sequence[dist.Work]) -> None:
        """Let gloo's group live as long as these are stuck in it."""
        if stuck := [work for work in works if not work.is_completed()]:
            # Whoever lets go of it last waits for its threads, and that must not be the main thread.
            threading.Thread(target=_await_all, args=(self.gloo, stuck), name="ddp-gloo", daemon=True).start()

    def exchange(self, works: Sequence[dist.Work], finish: Callable[[], None] = lambda: None) -> _Exchange:
        """What is to be waited for, and what to do then."""
        exchange = _Exchange(self, works, finish)
        self._exchanges.add(exchange)
        return exchange


class _Exchange(dist.Work):
    """What is waited for."""

    def __init__(self, group: AbortableGloo, works: Sequence[dist.Work], finish: Callable[[], None]) -> None:
        super().__init__()
        self._group: AbortableGloo | None = group
        """None when this is done or left: torch keeps for ever what nobody waited for, and must not keep gloo's."""
        self._works = works
        self._finish: Callable[[], None] | None = finish
        self._is_left = False

    def wait(self, timeout: timedelta = timedelta()) -> bool:  # noqa: ARG002 - the group's counts
        """Return when it has come to its end. Raises RuntimeError where it failed, or the group is over."""
        if self._is_left:
            raise RuntimeError(_LEFT)
        if self._group is None or self._finish is None:
            return True
        try:
            for work in self._works:
                _await(work, self._group.is_over)
        except BaseException:
            self.leave()
            raise
        self._finish()
        self._drop()
        return True

    def leave(self) -> None:
        """Wait for it no more."""
        if self._group is not None:
            self._group.outlast(self._works)
            self._is_left = True
            self._drop()

    def _drop(self) -> None:
        self._group, self._works, self._finish = None, (), None


def _await(work: dist.Work, is_over: Callable[[], bool]) -> None:
    while not work.is_completed():
        with suppress(RuntimeError):  # not yet; or what the last line raises
            work.wait(_LOOK)
        if not work.is_completed() and is_over():
            raise RuntimeError(_LEFT)
    work.wait()


def _await_all(gloo: dist.ProcessGroupGloo, works: Sequence[dist.Work]) -> None:
    """Hold the group until its works have ended, or this process has."""
    for work in works:
        with suppress(RuntimeError):
            work.wait()
    del gloo
