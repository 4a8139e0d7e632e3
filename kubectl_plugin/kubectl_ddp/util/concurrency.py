"""Concurrent function calls, whose total time is that of the slowest; and the request to threads to stop waiting."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, Generic, Self, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


class Future(Generic[T]):
    """Result of a function that runs in a thread. :meth:`result` raises its error; without that call, the error is
    dropped.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._answers: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the thread, because a thread that runs at interpreter shutdown may print errors. Ctrl-C does not
        wait.
        """
        if kind is None or issubclass(kind, Exception):
            self._thread.join()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._answers.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
            self._answers.put((None, error))

    def result(self) -> T:
        """Wait for the result and return it. Call this once. Raises the error of the function."""
        found, error = self._answers.get()
        if error is not None:
            raise error
        return found  # type: ignore[return-value]


AT_ONCE: Final = 16
"""Maximum number of concurrent requests. An API server's priority and fairness grants about so many to one user."""


@overload
def run_in_threads(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def run_in_threads(*calls: Callable[[], T]) -> tuple[T, ...]: ...
def run_in_threads(*calls: Callable[[], T]) -> tuple[T, ...]:
    """Run the calls concurrently and return their results in order.

    Ctrl-C does not wait for running calls, unlike in a thread pool: a server may take a minute to answer.

    Raises:
        BaseException: The error of the first failed call in order, after all calls have ended.
    """
    turns = threading.BoundedSemaphore(AT_ONCE)

    def run_with_limit(call: Callable[[], T]) -> T:
        with turns:
            return call()

    with ExitStack() as stack:
        futures = [stack.enter_context(Future(partial(run_with_limit, call))) for call in calls]
        return tuple(future.result() for future in futures)


def map_in_threads(function: Callable[[T], A], items: Sequence[T]) -> list[A]:
    """Return the result of ``function`` for each item, in order."""
    return list(run_in_threads(*(lambda item=item: function(item) for item in items)))


def feed(items: Iterable[T], arrivals: queue.Queue[T | BaseException | None]) -> None:
    """Put each item into a queue, and at the end ``None`` or the error of ``items``. Run it in a thread."""
    try:
        for item in items:
            arrivals.put(item)
        arrivals.put(None)
    except BaseException as error:  # noqa: BLE001 - raised again where the items are read
        arrivals.put(error)


THREAD_END_SECONDS: Final = 2.0
"""Maximum time to wait for threads after a stop. One that still reads from TLS can crash a process that exits."""


class Stop:
    """Request to stop, made by one thread and obeyed by others."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def is_requested(self) -> bool:
        """True once :meth:`request` was called."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request the stop, and wake every thread that is inside of :meth:`call_on_stop` or :meth:`wait`."""
        with self._lock:  # a waker is not called after its block has ended
            self._requested.set()
            for wake in self._wakers:
                wake()

    def wait(self, seconds: float) -> None:
        """Sleep, until the stop at the latest."""
        self._requested.wait(seconds)

    @contextlib.contextmanager
    def call_on_stop(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` when the stop is requested inside of the block, or was before. It must not block."""
        with self._lock:
            self._wakers.append(wake)
            if self.is_requested:
                wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)
