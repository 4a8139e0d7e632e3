"""A model of NCCL's rules on a CPU. It is not NCCL, and says nothing about speed, NVLink or drivers.

Of NCCL it has what a process must get right that leaves a group:

1. A collective returns when it is begun, and runs on the stream of its communicator: a thread.
2. ``wait()`` does not block the host. Later computations on the output wait for it.
3. When a rank is lost, a collective spins: without an error and without a timeout.
4. An abort ends it without an error, and leaves anything in the output: also what looks like a result.
5. A collective after the abort fails when it is begun, or, as if begun a moment earlier, leaves anything.
6. What else fails on a stream shows at the next synchronization of the host with the device.

gloo carries the numbers. The host computes what a GPU would compute, so it cannot run ahead: an operation waits for the
outputs that it reads (:class:`HostWaits`). C++ of DDP reads integers through pointers, which no mode sees, so
``wait()`` waits for integers.
"""

from __future__ import annotations

import os
import queue
import random
import threading
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ddp_trainer.train.distributed import group as group_module
from ddp_trainer.train.distributed.abortable_gloo import AbortableGloo
from ddp_trainer.train.distributed.stream_abort import STREAMS, Streams

NAME = "nccl_model"
ABORTED = "NCCL communicator was aborted"
"""Message of NCCL as well."""

_OF_PIECES = {"DTensor", "AsyncCollectiveTensor"}

_lock = threading.RLock()
_jobs: dict[int, list[Job]] = {}
"""Running collectives by the memory that they write to."""
_running: set[Job] = set()
_faults: list[BaseException] = []
chance = random.Random()
"""Decides what an abort leaves."""
is_stuck = threading.Event()
"""While set, the device never becomes idle, whatever is aborted."""


class Job:
    """Work of one collective on its stream."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)
        self.over = threading.Event()
        with _lock:
            _running.add(self)
            for output in self.outputs:
                _jobs.setdefault(memory_of(output), []).append(self)

    def end(self, write: Callable[[], None]) -> None:
        """Write the outputs, unless the job is over already."""
        with _lock:
            if self.over.is_set():
                return
            # Outputs of an evaluation are written to in no other mode, and this is the stream, which waits for nothing.
            with torch.inference_mode(), _disable_current_modes():
                write()
            _running.discard(self)
            for output in self.outputs:
                known = _jobs.get(memory_of(output), [])
                if self in known:
                    known.remove(self)
                if not known:
                    _jobs.pop(memory_of(output), None)
            self.over.set()

    def leave_anything(self) -> None:
        """End it as an abort does."""
        self.end(lambda: [spoil(output) for output in self.outputs] and None)


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def spoil(output: Tensor) -> None:
    """Write the output of an aborted kernel: the old content, a part of a sum, or garbage."""
    output = output.data
    kind = chance.choice(("as it was", "as it was", "half", "anything"))
    if kind == "half" and output.dim():
        output[: len(output) // 2] *= 2
    elif kind == "anything" and output.is_floating_point():
        output.fill_(chance.choice((float("nan"), 0.0, 1e30)))


def wait_for(tensors: Iterable[Any]) -> None:
    """Wait, as a stream does, until what is under way on these tensors is over, by itself or by an abort."""
    for tensor in tensors:
        if type(tensor) in {Tensor, torch.nn.Parameter} and tensor.layout is torch.strided and not tensor.is_meta:
            with _lock:
                jobs = list(_jobs.get(memory_of(tensor), ())) if _jobs else []
            for job in jobs:
                job.over.wait()


def synchronize() -> None:
    """Wait for all that is under way. Raises what has failed on a stream since."""
    with _lock:
        jobs = list(_running)
    for job in jobs:
        job.over.wait()
    while is_stuck.is_set():
        threading.Event().wait(0.05)
    show_faults()


def show_faults() -> None:
    """The next synchronization shows what has failed."""
    if _faults:
        raise _faults[0]


class ModelWork(dist.Work):
    """The handle of a collective."""

    def __init__(self, job: Job, *, is_awaited: bool = False) -> None:
        super().__init__()
        self._job = job
        self._is_awaited = is_awaited or any(not output.is_floating_point() for output in job.outputs)

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        if self._is_awaited:
            self._job.over.wait()
        return True

    def is_completed(self) -> bool:
        return self._job.over.is_set()

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._job.outputs)
        return future


class StreamModel(dist.ProcessGroup):
    """A communicator."""

    def __init__(self, gloo: dist.ProcessGroupGloo) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg]
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self.is_aborted = threading.Event()
        self.inner = AbortableGloo(gloo, self.is_aborted.is_set)
        self._open: set[Job] = set()
        self._stream: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.next_fault: BaseException | None = None
        threading.Thread(target=_run, args=(self._stream,), name="model-stream", daemon=True).start()

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def abort(self) -> None:
        """Rule 4."""
        with _lock:
            self.is_aborted.set()
            jobs = list(self._open)
        for job in jobs:
            job.leave_anything()

    def shutdown(self) -> None:
        self.abort()

    def _begin(
        self, reads: Sequence[Tensor], writes: Sequence[Tensor], begin: Callable[[], tuple[Any, Callable[[], None]]]
    ) -> ModelWork:
        """``begin`` asks gloo, on private copies: a work to wait for, and how its result gets into the outputs."""
        wait_for([*reads, *writes])
        with _lock:
            if self.is_aborted.is_set():
                if chance.random() < 0.5:
                    raise dist.DistBackendError(f"{ABORTED} on rank {self.rank()}.")
                job = Job(writes)
                job.leave_anything()
                return ModelWork(job)
            job = Job(writes)
            self._open.add(job)
        try:
            work, finish = begin()
        except RuntimeError:  # gloo knows already that a rank is lost; rule 3
            return ModelWork(job)
        fault, self.next_fault = self.next_fault, None

        def run() -> None:
            try:
                work.wait()
                if fault is not None:
                    _faults.append(fault)
                    job.leave_anything()
                job.end(finish)
            except RuntimeError:
                return  # rule 3: an abort ends it
            self._open.discard(job)

        if reads and writes:
            self._stream.put(run)
        else:  # what goes to one rank has a stream of its own
            threading.Thread(target=run, name="model-pair", daemon=True).start()
        return ModelWork(job)

    def _exchange(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *args: Any) -> ModelWork:
        """Exchange in place where inputs are outputs."""
        sent = [item.detach().clone() for item in self._awaited(inputs)]
        is_in_place = inputs is outputs
        received = sent if is_in_place else [torch.empty_like(item) for item in outputs]

        def begin() -> tuple[Any, Callable[[], None]]:
            call = getattr(self.inner, name)
            return (call(sent, *args) if is_in_place else call(received, sent, *args)), lambda: copy(outputs, received)

        return self._begin(inputs, outputs, begin)

    @staticmethod
    def _awaited(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        wait_for(tensors)
        return tensors

    def allreduce(self, tensors: Any, opts: Any = None) -> ModelWork:  # type: ignore[override]
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._exchange("allreduce", tensors, tensors, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> ModelWork:  # type: ignore[override]
        options = dist.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        works = [self.allreduce([tensor], options) for tensor in tensors]
        return works[-1]

    def broadcast(self, tensors: Any, opts: Any = None) -> ModelWork:  # type: ignore[override]
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._exchange("broadcast", tensors, tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> ModelWork:  # type: ignore[override]
        (own,), (into,) = inputs, outputs
        wait_for([own])
        sent, received = own.detach().clone(), [torch.empty_like(item) for item in into]
        options = opts or dist.distributed_c10d.AllgatherOptions()
        return self._begin(
            [own], into, lambda: (self.inner.allgather([received], [sent], options), lambda: copy(into, received))
        )

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> ModelWork:  # type: ignore[override]
        options = opts or dist.distributed_c10d.AllgatherOptions()
        return self._exchange("allgather_into_tensor_coalesced", inputs, outputs, options)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> ModelWork:  # type: ignore[override]
        return self._exchange("reduce_scatter_tensor_coalesced", inputs, outputs, opts or dist.ReduceScatterOptions())

    def all_gather_single(self, output: Tensor, own: Tensor, opts: Any = None) -> ModelWork:  # type: ignore[override]
        return self.allgather_into_tensor_coalesced([output], [own], opts)

    def reduce_scatter_single(self, output: Tensor, own: Tensor, opts: Any = None) -> ModelWork:  # type: ignore[override]
        return self.reduce_scatter_tensor_coalesced([output], [own], opts)

    _allgather_base: Callable[..., Any] = all_gather_single
    _reduce_scatter_base: Callable[..., Any] = reduce_scatter_single

    def alltoall_base(self, output: Tensor, own: Tensor, *args: Any) -> ModelWork:  # type: ignore[override]
        wait_for([own])
        sent, received = own.detach().clone(), torch.empty_like(output)
        return self._begin(
            [own],
            [output],
            lambda: (self.inner.alltoall_base(received, sent, *args), lambda: copy([output], [received])),
        )

    def barrier(self, opts: Any = None) -> ModelWork:  # type: ignore[override]
        work = self.allreduce([torch.zeros(1)])
        work._is_awaited = True
        return work

    def send(self, tensors: Any, target: int, tag: int = 0) -> ModelWork:  # type: ignore[override]
        wait_for(tensors)
        sent = [tensor.detach().clone() for tensor in tensors]
        return self._begin(tensors, [], lambda: (self.inner.send(sent, target, tag), lambda: None))

    def recv(self, tensors: Any, source: int, tag: int = 0) -> ModelWork:  # type: ignore[override]
        received = [torch.empty_like(tensor) for tensor in tensors]
        return self._begin(
            [], tensors, lambda: (self.inner.recv(received, source, tag), lambda: copy(tensors, received))
        )


def copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.data.copy_(source)  # autograd has noted the tensor's version before an operation waits for it


def _run(stream: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        stream.get()()


class HostWaits(TorchDispatchMode):
    """Each operation waits for the outputs that it reads; ``before`` is called with its name first."""

    def __init__(self, before: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._before = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ in _OF_PIECES for kind in types):
            return NotImplemented  # what they come to on this rank is seen here afterwards
        self._before(str(func))
        wait_for(tree_leaves((args, kwargs)))
        if func is torch.ops.aten._local_scalar_dense.default:
            show_faults()
        return func(*args, **(kwargs or {}))


class ModelMark:
    """A place in the stream."""

    def record(self) -> None:
        with _lock:
            self._jobs = list(_running)

    def query(self) -> bool:
        return all(job.over.is_set() for job in self._jobs)


class ModelStreams(Streams):
    def disable_watchdog(self, environ: MutableMapping[str, str]) -> str:
        return ""

    def mark(self) -> ModelMark:
        return ModelMark()

    def synchronize(self, device: torch.device) -> None:
        synchronize()


def made(options: Any, _: Any) -> StreamModel:
    """As torch makes a communicator."""
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()
    return StreamModel(gloo)


def _synchronizing(name: str) -> None:
    """Let a method of tensors wait that reads memory behind the back of every mode."""
    inner = getattr(Tensor, name)

    def read(tensor: Tensor, *args: Any, **options: Any) -> Any:
        wait_for([tensor])
        show_faults()
        return inner(tensor, *args, **options)

    setattr(Tensor, name, read)


def install(before: Callable[[str], None] = lambda _: None) -> None:
    """Let all groups of this process be of the model, and its main thread wait as a stream."""
    chance.seed(f"{os.environ.get('STREAM_MODEL_SEED', '0')} {os.getpid()}")
    dist.Backend.register_backend(NAME, made, extended_api=True, devices=["cpu"])
    STREAMS[NAME] = ModelStreams()
    group_module.choose_backend = lambda *_: NAME  # type: ignore[assignment]
    for name in ("tolist", "numpy", "cpu"):
        _synchronizing(name)
    with suppress(StopIteration):
        HostWaits(before).__enter__()
