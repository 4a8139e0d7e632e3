"""All-reduce in the fixed order of the reduction tree, from the sums of each rank's subtrees.

The algorithm is a reduce-scatter with a fixed order of additions, and an all-gather. Every rank receives one slice of
all subtrees, adds them in the order of the tree, and sends the result to all ranks. If every rank owns one whole
subtree, it moves as many bytes as a ring. Otherwise each rank sends one slice for every subtree that it owns,
O(log slices). The main entry point is :func:`exchange`.

The tree fixes the order of additions, as a function of the number of leaves only.

Floating-point addition is commutative but not associative, so the tree determines the bits of a sum. Leaf ``i`` is node
``(0, i)``. Node ``(level, place)`` is the sum of ``(level - 1, 2 * place)`` and its right neighbour, or the former
alone if the neighbour has no leaves. A rank needs only the nodes over its leaves. :class:`BinaryCounter` adds them up
in order, like a binary counter that carries.

:class:`TreeSum` adds up the batch slices of a step, with the same bits for any assignment of slices to ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.collective_names import ALL_GATHER

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


class TreeSum:
    """Sum over batch slices: call :meth:`put` for each slice in order, then :meth:`total`.

    A slice without values counts as zeros, at any number of ranks, because -0 + 0 differs from -0.
    """

    def __init__(self, batch_slices: int, group: Group, zeros: Callable[[], list[Tensor]]) -> None:
        """``zeros`` returns zeros with the shapes and dtypes of the values of a slice."""
        self._batch_slices = batch_slices
        self._group = group
        self._zeros = zeros
        self._counter = BinaryCounter[list[Tensor]](batch_slices, _add)
        self._runs = [owned(batch_slices, group.world_size, rank) for rank in range(group.world_size)]
        self.clear()

    def clear(self) -> None:
        """Drop all values."""
        self._counter.clear()
        self._next = self.local_slices.start

    @property
    def local_slices(self) -> range:
        """Slices of this rank."""
        return self._runs[self._group.rank]

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Set the slices of every rank, in rank order, and drop all values. All ranks must pass the same."""
        self._runs = list(batch_slices)
        self.clear()

    def put(self, slice_index: int, values: list[Tensor]) -> None:
        """Add the values of a slice. The tensors are modified.

        Args:
            slice_index: Index of the slice, which belongs to this rank. Slices are added in ascending order.
            values: Tensors with the shapes and dtypes of the zeros that this sum was created with.
        """
        self._fill_up_to(slice_index)
        self._counter.put(TreeNode(0, slice_index), values)
        self._next = slice_index + 1

    def _fill_up_to(self, slice_index: int) -> None:
        for missing in range(self._next, slice_index):
            self._counter.put(TreeNode(0, missing), self._zeros())
        self._next = slice_index

    def total(self) -> list[Tensor]:
        """Return the sum over all slices of all ranks, and drop all values. Every rank must call it.

        Raises:
            PeerLost: A peer was lost.
        """
        self._fill_up_to(self.local_slices.stop)
        if self._group.world_size == 1:
            total = self._counter.root()
        else:
            nodes = [subtree_roots(self._batch_slices, run) for run in self._runs]
            total = exchange(self._counter.values, nodes, self._batch_slices, self._group)
        self.clear()
        return total


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)  # on a GPU a few kernels instead of one per weight, as in torch's optimizers
    return left


BUCKET_BYTES: Final = 64 << 20
"""Largest number of bytes in one exchange, which bounds the memory beside the gradients."""

SMALL_BYTES: Final = 1 << 16
"""Bytes of all subtrees up to which round trips determine the time of an exchange, and not its size."""


def exchange(
    own: Sequence[list[Tensor]], nodes: Sequence[Sequence[TreeNode]], leaves: int, group: Group
) -> list[Tensor]:
    """Return the sum over the tree, in the memory of the first subtree of this rank.

    Args:
        own: Sums of the subtrees of this rank, each a list of tensors of the same shapes. They are modified.
        nodes: Nodes of the subtrees of every rank, from left to right.
        leaves: Number of leaves of the tree.
        group: Process group.

    Raises:
        PeerLost: A peer was lost.
    """
    for bucket in buckets(own[0], BUCKET_BYTES):
        summed = _exchange_bucket([[sums[each] for each in bucket] for sums in own], nodes, leaves, group)
        start = 0
        for each in bucket:
            target = own[0][each]
            target.copy_(summed[start : start + target.numel()].view(target.shape))
            start += target.numel()
    return own[0]


def buckets(tensors: Sequence[Tensor], limit_bytes: int) -> Iterator[list[int]]:
    """Yield the positions of tensors that are exchanged together.

    The tensors of a bucket have one dtype and at most ``limit_bytes`` bytes. A larger tensor is a bucket by itself.

    Args:
        tensors: Tensors of any shape and dtype.
        limit_bytes: Largest size of a bucket, in bytes.
    """
    by_type: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(position)
    for positions in by_type.values():
        bucket: list[int] = []
        size = 0
        for position in positions:
            more = tensors[position].numel() * tensors[position].element_size()
            if bucket and size + more > limit_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(position)
            size += more
        yield bucket


def _exchange_bucket(
    own: Sequence[Sequence[Tensor]], nodes: Sequence[Sequence[TreeNode]], leaves: int, group: Group
) -> Tensor:
    """Return the sum as one vector, padded with zeros so that all slices have the same length."""
    places = [node for each in nodes for node in each]
    size = sum(tensor.numel() for tensor in own[0])
    if len(places) * size * own[0][0].element_size() <= SMALL_BYTES:
        return _gather_bucket(own, nodes, leaves, group)
    slice_size = -(-size // group.world_size)
    padded = own[0][0].new_zeros(len(own), group.world_size * slice_size)
    for row, sums in zip(padded, own, strict=True):
        torch.cat([tensor.reshape(-1) for tensor in sums], out=row[:size])
    # The first slices of all subtrees, then their second slices, and so on: in the order of the receiving ranks.
    sent = padded.view(len(own), group.world_size, slice_size).transpose(0, 1).reshape(-1)
    counts = [len(each) * slice_size for each in nodes]
    received = sent.new_empty(sum(counts))
    with group.convert_errors():
        dist.all_to_all_single(received, sent, counts, [len(own) * slice_size] * group.world_size)
    whole = sent.new_empty(group.world_size * slice_size)
    summed = _along_tree(places, received.view(len(places), slice_size), leaves)
    with group.convert_errors():
        ALL_GATHER(whole, summed)
    return whole


def _gather_bucket(
    own: Sequence[Sequence[Tensor]], nodes: Sequence[Sequence[TreeNode]], leaves: int, group: Group
) -> Tensor:
    """Send the sums of all subtrees to all ranks, each of which adds them up: one exchange instead of two."""
    most = max(len(each) for each in nodes)
    sent = torch.stack([torch.cat([tensor.reshape(-1) for tensor in sums]) for sums in own])
    # Ranks must send the same size, so those with fewer subtrees append rows that are not read.
    sent = torch.cat([sent, sent.new_zeros(most - len(own), sent.shape[1])])
    received = sent.new_empty(group.world_size * most, sent.shape[1])
    with group.convert_errors():
        ALL_GATHER(received, sent)
    rows = received.view(group.world_size, most, -1)
    parts = [part for each, of_rank in zip(nodes, rows, strict=True) for part in of_rank[: len(each)]]
    return _along_tree([node for each in nodes for node in each], parts, leaves)


def _along_tree(nodes: Iterable[TreeNode], parts: Iterable[Tensor], leaves: int) -> Tensor:
    counter = BinaryCounter[Tensor](leaves, Tensor.add_)
    for node, part in zip(nodes, parts, strict=True):
        counter.put(node, part)
    return counter.root()
