"""Fixed reduction tree: the order of additions, as a function of the number of leaves only.

Floating-point addition is commutative but not associative, so the tree determines the bits of a sum. Leaf ``i`` is node
``(0, i)``. Node ``(level, place)`` is the sum of ``(level - 1, 2 * place)`` and its right neighbour, or the former
alone if the neighbour has no leaves. A rank needs only the nodes over its leaves. :class:`BinaryCounter` adds them up
in order, like a binary counter that carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class TreeNode(NamedTuple):
    """Position in the tree."""

    level: int
    place: int


class BinaryCounter(Generic[T]):
    """Sums over neighbouring leaves, added from left to right.

    At most two sums per level of the tree are in memory.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        """``add`` receives the left and the right sum and may modify both."""
        self._leaves = leaves
        self._height = (leaves - 1).bit_length()
        self._add = add
        self._stack: list[tuple[TreeNode, T]] = []

    def put(self, node: TreeNode, value: T) -> None:
        """Add the sum of the node that follows directly on those added so far."""
        self._stack.append((node, value))
        while self._carry():
            pass

    def _carry(self) -> bool:
        (level, place), value = self._stack[-1]
        if level == self._height:
            return False
        parent = TreeNode(level + 1, place // 2)
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
    def nodes(self) -> list[TreeNode]:
        """Nodes whose sums are in memory, from left to right."""
        return [node for node, _ in self._stack]

    @property
    def values(self) -> list[T]:
        """Sums of :attr:`nodes`, in the same order."""
        return [value for _, value in self._stack]

    def root(self) -> T:
        """Return the sum of all leaves.

        Raises:
            ValueError: Some leaves are missing.
        """
        if self.nodes != [TreeNode(self._height, 0)]:
            raise ValueError(f"the sum of {self._leaves} leaves is asked for, and there are only {self.nodes}")
        return self._stack[0][1]

    def clear(self) -> None:
        """Drop all sums."""
        self._stack.clear()


def subtree_roots(leaves: int, run: Iterable[int]) -> list[TreeNode]:
    """Return the nodes that a rank can sum up without other ranks, from left to right.

    Args:
        leaves: Number of leaves of the tree.
        run: Leaves of the rank, a contiguous range.

    >>> [tuple(node) for node in subtree_roots(8, range(3, 8))]
    [(0, 3), (2, 1)]
    """
    counter = BinaryCounter[None](leaves, lambda _left, _right: None)
    for leaf in run:
        counter.put(TreeNode(0, leaf), None)
    return counter.nodes
