"""Abort of collectives that run on device streams, as in NCCL, so that a process can leave its group.

The host starts such a collective without waiting, and waits where it reads a result. When a rank is lost, a kernel
spins on the device. The main thread then waits in a call that the host cannot interrupt. So another thread aborts the
communicators (:class:`StreamAbort`), with three rules:

- Set the flag before the abort. An abort unblocks the stream without an error and leaves undefined outputs. So a reader
  of a result checks the flag before it uses the result.
- Abort the communicator of all ranks first. Otherwise a vote could accept gradients of an aborted subgroup.
- Check the device in a thread, with a time limit, because the check can hang. If the device is not usable, this process
  ends, because it cannot even save.

Not verified on GPUs: tests use a model of these rules, ``tests/support/stream_model.py``.

Sources: torchft's ``process_group.py`` (the error is set before the abort), NVRx's ``inprocess.abort`` (abort from
another thread, all communicators together) and its ``CudaHealthCheck``; torch's ``_abort_process_group``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import async_error_handling_overrides

_WATCHDOG: Final = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS")
"""Variables that, set to 0, stop torch's watchdog from ending this process or destroying groups during the abort."""

_WHILE_SURVIVING: Final = {
    # After an error, the watchdog sleeps four times this long, and holds a lock that the abort needs (default: 60 s).
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    # The monitor thread dumps its records after an error, waits 480 s, and ends the process (pytorch#155916).
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Variables that a process needs to survive its NCCL group, whatever the job sets: the launcher reads the records of
the flight recorder itself. Source: ``ProcessGroupNCCL.cpp``, ``Watchdog::runLoop`` and ``HeartbeatMonitor::runLoop``.
"""

_HEAD_START_SECONDS: Final = 0.2
"""Maximum wait for the abort of the communicator of all ranks, before the aborts of the others start.

They do not wait longer, because its kernel can be queued behind one of theirs.
"""

_QUERY_SECONDS: Final = 0.5
"""Time limit of the query whether the stream passed a mark. It takes microseconds if the driver responds."""

LIMIT_SECONDS: Final = 10.0
"""Time limit of all aborts together, and then of the synchronization of the device."""


class StreamMark(Protocol):
    """Position in a stream, with the interface of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Record the current end of the stream's queue."""

    def query(self) -> bool:
        """Return whether all work before the recorded position is complete."""


class Streams:
    """Interface to the CUDA streams on which NCCL's collectives run."""

    def disable_watchdog(self, environ: MutableMapping[str, str]) -> str:
        """Disable torch's watchdog, only if the launcher ends hanging ranks, because no other timeout remains.

        Returns:
            Why the watchdog stays on, as a clause; empty if it is disabled.
        """
        if environ.get(Env.ON_HANG) != "act":
            return "the launcher does not end hanging ranks (--on-hang act)"
        for name in async_error_handling_overrides(environ):
            return f"torch's watchdog ends the process with {name}={environ[name]}"
        for name in _WATCHDOG:
            if environ.setdefault(name, "0").strip() != "0":
                return f"torch's watchdog stays on with {name}={environ[name]}"
        environ.update(_WHILE_SURVIVING)
        return ""

    def mark(self) -> StreamMark:
        """Return a CUDA event, which records on the current stream."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call] # torch's

    def synchronize(self, device: torch.device) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(device)


STREAMS: Final[dict[str, Streams]] = {"nccl": Streams()}
"""Backends with collectives on streams. With all other backends the host waits."""


class StreamAbort:
    """Abort of one group. Any thread can start it; it runs once."""

    def __init__(
        self,
        streams: Streams,
        device: torch.device,
        end: Callable[[str], None],
        *,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """Create an abort that has not started.

        Args:
            streams: Interface to the device.
            device: Device of this rank.
            end: Ends this process with a message. Called if the device is not usable.
            limit_seconds: Time limit of all aborts, and then of the synchronization.
        """
        self._streams = streams
        self._device = device
        self._end = end
        self._limit = limit_seconds
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._mark: StreamMark | None = None
        self._is_marked = False
        self._had_passed = False
        self._is_aborting = False
        self.has_begun = False
        """True after the start of the abort: results of collectives are invalid."""

    @property
    def is_reduction_complete(self) -> bool:
        """True if all work before the mark of the current step was complete when the abort started."""
        return self._is_marked and self._had_passed

    def clear_mark(self) -> None:
        """Clear the mark, because its step is over."""
        self._is_marked = False

    def mark(self) -> None:
        """Mark the work queued on the stream so far, for :attr:`is_reduction_complete`.

        Has no effect after the abort starts.

        It takes no lock. On a blocked stream it can wait, as any launch can, and the abort must not wait for it.
        """
        if not self.has_begun:
            self._mark = self._mark or self._streams.mark()
            self._mark.record()
            self._is_marked = True

    def begin(self) -> None:
        """Start to abort all communicators and return immediately."""
        with self._lock:
            if self.has_begun:
                return
            self.has_begun = True
        threading.Thread(target=self._run, name="ddp-abort", daemon=True).start()

    def finish(self) -> None:
        """Abort the group and wait until the device is free. If it cannot be freed, this process ends."""
        self.begin()
        self._done.wait()

    def synchronize(self) -> None:
        """Wait for the device without an abort. Raises the error of failed work."""
        self._streams.synchronize(self._device)

    def _query_mark(self) -> None:
        with suppress(RuntimeError):  # the work on a failed device counts as incomplete
            passed = self._is_marked and self._mark is not None and self._mark.query()
            # A late result may describe a stream that the abort has already unblocked.
            self._had_passed = passed and not self._is_aborting

    def _run(self) -> None:
        # Query before the abort: afterwards the stream passes every mark, with undefined outputs.
        _started(self._query_mark).join(_QUERY_SECONDS)
        self._is_aborting = True
        trouble = self._abort_all() or self._rest()
        if trouble:
            self._end(f"This process ends with its group: {trouble}.")
        else:
            self._done.set()

    def _abort_all(self) -> str:
        default, *others = list_process_groups() or [None]
        if default is None:
            return ""
        deadline = time.monotonic() + self._limit
        running = [_started(_abort, default)]
        running[0].join(_HEAD_START_SECONDS)
        running += [_started(_abort, other) for other in others]
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        is_late = any(thread.is_alive() for thread in running)
        return f"aborting its communicators took more than {self._limit:g} s" if is_late else ""

    def _rest(self) -> str:
        failures: list[str] = []

        def synchronize_device() -> None:
            try:
                self._streams.synchronize(self._device)
            except Exception as err:  # noqa: BLE001 - any error means that the device is not usable
                failures.append(str(err).strip().split("\n", 1)[0].rstrip("."))

        thread = _started(synchronize_device)
        thread.join(self._limit)
        if thread.is_alive():
            return f"{self._device} did not come to rest within {self._limit:g} s of the abort"
        return failures[0] if failures else ""


def list_process_groups() -> list[Any]:
    """Return all process groups of this process, the default group first; empty without a default group."""
    if not dist.is_initialized():
        return []
    default = dist.group.WORLD
    known = list(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_map", ()))
    return [default, *(group for group in known if group is not default)]


def _abort(group: Any) -> None:
    with suppress(RuntimeError):  # a group that has nothing to abort
        group.abort()


def _started(work: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, name="ddp-abort-part", daemon=True)
    thread.start()
    return thread
