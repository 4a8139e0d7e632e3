"""Several questions at once: what they take is what the slowest of them takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeVar, overload

from kubectl_ddp.future import Future

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

AT_ONCE: Final = 16
"""Requests under way; an API server's priority and fairness gives one person about so many."""


@overload
def run_concurrently(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def run_concurrently(*calls: Callable[[], T]) -> tuple[T, ...]: ...
def run_concurrently(*calls: Callable[[], T]) -> tuple[T, ...]:
    """What each call returns, in order. Raises what the first of them raised that did, once all are done.

    Ctrl-C waits for none of them, as a pool of threads would: a server may be silent for a minute.
    """
    turns = threading.BoundedSemaphore(AT_ONCE)

    def run_with_limit(call: Callable[[], T]) -> T:
        with turns:
            return call()

    with ExitStack() as stack:
        asides = [stack.enter_context(Future(partial(run_with_limit, call))) for call in calls]
        return tuple(aside.result() for aside in asides)


def each(ask: Callable[[T], A], items: Sequence[T]) -> list[A]:
    """What ``ask`` returns for each item, in order."""
    return list(run_concurrently(*(lambda item=item: ask(item) for item in items)))
