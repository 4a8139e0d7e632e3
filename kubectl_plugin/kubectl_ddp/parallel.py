"""Several questions at once: what they take is what the slowest of them takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeVar, overload

from kubectl_ddp.aside import Aside

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

AT_ONCE: Final = 16
"""Requests under way; an API server's priority and fairness gives one person about so many."""


@overload
def together(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def together(*calls: Callable[[], T]) -> tuple[T, ...]: ...
def together(*calls: Callable[[], T]) -> tuple[T, ...]:
    """What each call returns, in order. Raises what the first of them raised that did, once all are done.

    Ctrl-C waits for none of them, as a pool of threads would: a server may be silent for a minute.
    """
    turns = threading.BoundedSemaphore(AT_ONCE)

    def in_turn(call: Callable[[], T]) -> T:
        with turns:
            return call()

    with ExitStack() as stack:
        asides = [stack.enter_context(Aside(partial(in_turn, call))) for call in calls]
        return tuple(aside.result() for aside in asides)


def each(ask: Callable[[T], A], items: Sequence[T]) -> list[A]:
    """What ``ask`` returns for each item, in order."""
    return list(together(*(lambda item=item: ask(item) for item in items)))
