"""Several questions to the API server at once: what they take is what the slowest of them takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, overload

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
    """What each call returns, in order. Raises what the first of them raised that did, once all are done."""
    if not calls:
        return ()
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 10 ms that most commands do without

    with ThreadPoolExecutor(min(AT_ONCE, len(calls)), thread_name_prefix="ask") as pool:
        return tuple(future.result() for future in [pool.submit(call) for call in calls])


def each(ask: Callable[[T], A], items: Sequence[T]) -> list[A]:
    """What ``ask`` returns for each item, in order."""
    return list(together(*(lambda item=item: ask(item) for item in items)))
