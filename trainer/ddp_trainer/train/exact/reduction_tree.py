"""The fixed tree: which two sums are added to which, as a function of the number of leaves alone.

Addition of floating-point numbers commutes, but does not associate. So the tree says all there is to say about a sum.
Leaf ``i`` is node ``(0, i)``; node ``(level, place)`` is the sum of ``(level - 1, 2 * place)`` and its right
neighbour, or the former alone where the tree has no leaf so far to the right. No rank needs more of it than the nodes
over its own leaves, and those it can add up as they come, like a binary counter that carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """A place in the tree."""

    level: int
    place: int


class BinaryCounter(Generic[T]):
    """Sums over neighbouring leaves, from left to right: never more of them than the tree has levels, and one."""

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        """``add`` gets the left and the right sum and may use up both."""
        self._leaves = leaves
        self._height = (leaves - 1).bit_length()
        self._add = add
        self._stack: list[tuple[Node, T]] = []

    def put(self, node: Node, value: T) -> None:
        """Take in the sum that belongs right after those taken in so far."""
        self._stack.append((node, value))
        while self._carries():
            pass

    def _carries(self) -> bool:
        (level, place), value = self._stack[-1]
        if level == self._height:
            return False
        parent = Node(level + 1, place // 2)
        if place % 2 == 0:
            is_lonely = (place + 1) << level >= self._leaves
            if is_lonely:
                self._stack[-1] = (parent, value)
            return is_lonely
        if len(self._stack) < 2 or self._stack[-2][0] != (level, place - 1):
            return False
        _, left = self._stack[-2]
        self._stack[-2:] = [(parent, self._add(left, value))]
        return True

    @property
    def nodes(self) -> list[Node]:
        """Of which nodes the sums are there, from left to right."""
        return [node for node, _ in self._stack]

    @property
    def values(self) -> list[T]:
        """Those sums."""
        return [value for _, value in self._stack]

    def root(self) -> T:
        """The sum of all leaves.

        Raises:
            ValueError: not all of them were taken in.
        """
        if self.nodes != [Node(self._height, 0)]:
            raise ValueError(f"the sum of {self._leaves} leaves is asked for, and there are only {self.nodes}")
        return self._stack[0][1]

    def clear(self) -> None:
        """Begin anew."""
        self._stack.clear()


def cover(leaves: int, run: Iterable[int]) -> list[Node]:
    """The nodes that a rank which owns this run of leaves can sum up alone, from left to right.

    >>> [tuple(node) for node in cover(8, range(3, 8))]
    [(0, 3), (2, 1)]
    """
    counter = BinaryCounter[None](leaves, lambda _left, _right: None)
    for leaf in run:
        counter.put(Node(0, leaf), None)
    return counter.nodes
