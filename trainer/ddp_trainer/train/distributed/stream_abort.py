"""Leaving a group whose collectives run on streams of a device, as NCCL's do.

The host begins such a collective and goes on; it waits where it reads a result. When a rank is lost, a kernel spins on
the device, and the main thread stands behind it in a call that nothing on the host wakes. So another thread aborts the
communicators (:class:`StreamAbort`), by three rules:

- The flag comes before the abort. An abort unblocks the stream and leaves anything in the outputs, without an error:
  whoever has read a result looks at the flag before it believes the result.
- The communicator of all ranks goes first, or a vote could pass on gradients of a smaller group that was aborted.
- Whether the device is of use is asked by a thread that may hang, for a limited time. Where it is of none, this process
  ends, because it cannot even save.

Not proven on GPUs: tests show it on a model of these rules, ``tests/support/stream_model.py``.

Sources: torchft's ``process_group.py`` (the error is set before the abort), NVRx's ``inprocess.abort`` (abort from
another thread, all communicators at once) and its ``CudaHealthCheck``; torch's ``_abort_process_group``.
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

_WATCHDOG: Final = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS")
"""With 0 each, torch's watchdog neither ends this process nor tears down what is being aborted here."""

_HEAD_START_SECONDS: Final = 0.2
"""For the communicator of all ranks. The others follow also if it is not through: its kernel may be queued behind one
of theirs."""

_LOOK_SECONDS: Final = 0.5
"""For an answer whether a mark was passed, which takes microseconds where the driver answers at all."""

LIMIT_SECONDS: Final = 10.0
"""For all aborts together, and again for the device to come to rest."""


class Mark(Protocol):
    """A place in a stream, as ``torch.cuda.Event``."""

    def record(self) -> None:
        """Mark the place that the stream has come to."""

    def query(self) -> bool:
        """Whether all work before that place is done."""


class Streams(Protocol):
    """What is asked of a device on which collectives run."""

    def leave_errors_to_launcher(self, environ: MutableMapping[str, str]) -> bool:
        """Switch off what would end this process while it leaves a group; False where it stays on."""

    def mark(self) -> Mark:
        """A mark that is not recorded yet."""

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work. Raises what failed in it."""


class CudaStreams:
    """Of NCCL."""

    def leave_errors_to_launcher(self, environ: MutableMapping[str, str]) -> bool:
        """Only where the launcher ends a rank that hangs: with the watchdog off, there is no other timeout."""
        if environ.get(Env.ON_HANG) != "act":
            return False
        return all(environ.setdefault(name, "0").strip() == "0" for name in _WATCHDOG)

    def mark(self) -> Mark:
        """An event of the current stream."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call] # torch's

    def synchronize(self, device: torch.device) -> None:
        """All streams of the device."""
        torch.cuda.synchronize(device)


STREAMS: Final[dict[str, Streams]] = {"nccl": CudaStreams()}
"""By the name of the backend; the others wait on the host."""


class StreamAbort:
    """The end of one group: begun by any thread, once."""

    def __init__(
        self,
        streams: Streams,
        device: torch.device,
        end: Callable[[str], None],
        *,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """``end`` is called with a sentence where the device is of no use any more; it ends this process."""
        self._streams = streams
        self._device = device
        self._end = end
        self._limit = limit_seconds
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._mark: Mark | None = None
        self._is_marked = False
        self._had_passed = False
        self._is_aborting = False
        self.has_begun = False
        """From here on no result counts."""

    @property
    def had_reduced(self) -> bool:
        """Everything before the mark of the step under way was done when the abort began."""
        return self._is_marked and self._had_passed

    def clear_mark(self) -> None:
        """What was marked belongs to a step that is over."""
        self._is_marked = False

    def mark(self) -> None:
        """Mark what the stream has to do so far, for :attr:`had_reduced`; no effect once the abort has begun.

        It takes no lock: on a stream that stands still it may wait, as any launch may, and no abort must wait for it.
        """
        if not self.has_begun:
            self._mark = self._mark or self._streams.mark()
            self._mark.record()
            self._is_marked = True

    def begin(self) -> None:
        """Abort all communicators; returns at once."""
        with self._lock:
            if self.has_begun:
                return
            self.has_begun = True
        threading.Thread(target=self._run, name="ddp-abort", daemon=True).start()

    def finish(self) -> None:
        """Return when the device is free of this group; this process has ended where it cannot be freed."""
        self.begin()
        self._done.wait()

    def settle(self) -> None:
        """Wait for the device, in a group that goes on. Raises what failed."""
        self._streams.synchronize(self._device)

    def _look_at_mark(self) -> None:
        with suppress(RuntimeError):  # a device that has failed has done nothing
            passed = self._is_marked and self._mark is not None and self._mark.query()
            # An answer that came late may be about a stream that was freed.
            self._had_passed = passed and not self._is_aborting

    def _run(self) -> None:
        # Asked before the abort: afterwards the stream passes every mark, whatever is in the outputs.
        _started(self._look_at_mark).join(_LOOK_SECONDS)
        self._is_aborting = True
        trouble = self._abort_all() or self._rest()
        if trouble:
            self._end(f"This process ends with its group: {trouble}.")
        else:
            self._done.set()

    def _abort_all(self) -> str:
        whole, *others = communicators() or [None]
        if whole is None:
            return ""
        deadline = time.monotonic() + self._limit
        running = [_started(_abort, whole)]
        running[0].join(_HEAD_START_SECONDS)
        running += [_started(_abort, each) for each in others]
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        is_late = any(thread.is_alive() for thread in running)
        return f"aborting its communicators took more than {self._limit:g} s" if is_late else ""

    def _rest(self) -> str:
        failures: list[str] = []

        def ask() -> None:
            try:
                self._streams.synchronize(self._device)
            except Exception as err:  # noqa: BLE001 - whatever it is, the device is of no use
                failures.append(str(err).strip().split("\n", 1)[0].rstrip("."))

        thread = _started(ask)
        thread.join(self._limit)
        if thread.is_alive():
            return f"{self._device} did not come to rest within {self._limit:g} s of the abort"
        return failures[0] if failures else ""


def communicators() -> list[Any]:
    """All process groups of this process, that of all ranks first; none where there is no default group."""
    if not dist.is_initialized():
        return []
    whole = dist.group.WORLD
    known = list(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_map", ()))
    return [whole, *(each for each in known if each is not whole)]


def _abort(group: Any) -> None:
    with suppress(RuntimeError):  # of a group that has nothing to abort
        group.abort()


def _started(work: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, name="ddp-abort-part", daemon=True)
    thread.start()
    return thread
