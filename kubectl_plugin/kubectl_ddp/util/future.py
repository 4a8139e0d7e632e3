"""A function call that runs in a thread beside others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

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
