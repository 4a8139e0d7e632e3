"""Concurrent function calls: the total time is that of the slowest call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeVar, overload

from kubectl_ddp.util.future import Future

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

AT_ONCE: Final = 16
"""Maximum number of concurrent requests. An API server's priority and fairness grants about so many to one user."""


@overload
def run_concurrently(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def run_concurrently(*calls: Callable[[], T]) -> tuple[T, ...]: ...
def run_concurrently(*calls: Callable[[], T]) -> tuple[T, ...]:
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
        asides = [stack.enter_context(Future(partial(run_with_limit, call))) for call in calls]
        return tuple(aside.result() for aside in asides)


def each(ask: Callable[[T], A], items: Sequence[T]) -> list[A]:
    """Return the result of ``ask`` for each item, in order."""
    return list(run_concurrently(*(lambda item=item: ask(item) for item in items)))
