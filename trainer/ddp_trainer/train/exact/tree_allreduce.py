"""Sum along a fixed binary tree, and the check that all ranks compute the same bits.

:class:`TreeSum` adds up the tensors of the batch slices in an order that does not depend on the number of ranks.
:func:`require_same_hardware` refuses ranks whose hardware or software computes other bits.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.distributed.grad_allreduce import ALL_GATHER
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig

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
        summed = _exchange_bucket([[sums[index] for index in bucket] for sums in own], nodes, leaves, group)
        start = 0
        for index in bucket:
            target = own[0][index]
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
    places = [node for of_one in nodes for node in of_one]
    size = sum(tensor.numel() for tensor in own[0])
    if len(places) * size * own[0][0].element_size() <= SMALL_BYTES:
        return _gather_bucket(own, nodes, leaves, group)
    slice_size = -(-size // group.world_size)
    padded = own[0][0].new_zeros(len(own), group.world_size * slice_size)
    for row, sums in zip(padded, own, strict=True):
        torch.cat([tensor.reshape(-1) for tensor in sums], out=row[:size])
    # The first slices of all subtrees, then their second slices, and so on: in the order of the receiving ranks.
    sent = padded.view(len(own), group.world_size, slice_size).transpose(0, 1).reshape(-1)
    counts = [len(of_one) * slice_size for of_one in nodes]
    received = sent.new_empty(sum(counts))
    with group.convert_errors():
        dist.all_to_all_single(received, sent, counts, [len(own) * slice_size] * group.world_size)
    gathered = sent.new_empty(group.world_size * slice_size)
    summed = _along_tree(places, received.view(len(places), slice_size), leaves)
    with group.convert_errors():
        ALL_GATHER(gathered, summed)
    return gathered


def _gather_bucket(
    own: Sequence[Sequence[Tensor]], nodes: Sequence[Sequence[TreeNode]], leaves: int, group: Group
) -> Tensor:
    """Send the sums of all subtrees to all ranks, each of which adds them up: one exchange instead of two."""
    most = max(len(of_one) for of_one in nodes)
    sent = torch.stack([torch.cat([tensor.reshape(-1) for tensor in sums]) for sums in own])
    # Ranks must send the same size, so those with fewer subtrees append rows that are not read.
    sent = torch.cat([sent, sent.new_zeros(most - len(own), sent.shape[1])])
    received = sent.new_empty(group.world_size * most, sent.shape[1])
    with group.convert_errors():
        ALL_GATHER(received, sent)
    rows = received.view(group.world_size, most, -1)
    parts = [part for of_one, of_rank in zip(nodes, rows, strict=True) for part in of_rank[: len(of_one)]]
    return _along_tree([node for of_one in nodes for node in of_one], parts, leaves)


def _along_tree(nodes: Iterable[TreeNode], parts: Iterable[Tensor], leaves: int) -> Tensor:
    counter = BinaryCounter[Tensor](leaves, Tensor.add_)
    for node, part in zip(nodes, parts, strict=True):
        counter.put(node, part)
    return counter.root()


def hardware_id(device: torch.device) -> str:
    """Return a text with the processor, the torch version and the number of threads.

    Machines with equal texts select the same kernels, so the same work gives the same bits.
    """
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"{_processor()} with {torch.backends.cpu.get_cpu_capability()}"
    threads = torch.get_num_threads()
    return f"{where}, torch {torch.__version__} and {threads} thread{'' if threads == 1 else 's'}"


def require_same_hardware(own: str, group: Group) -> None:
    """Refuse a group of unlike machines; every rank must call it.

    Args:
        own: :func:`hardware_id` of this rank.
        group: Process group.

    Raises:
        BadConfig: The hardware of a rank differs from that of rank 0.
    """
    first = group.broadcast(own.encode() if group.rank == 0 else None, source=0).decode()
    unlike = [rank for rank, differs in enumerate(group.gather(int(own != first))) if differs]
    if not unlike:
        return
    difference = f"rank {group.rank} on {own}" if group.rank in unlike else f"rank {unlike[0]} on something else"
    raise BadConfig(
        f"--level exact cannot give the same bits on unlike machines: rank 0 computes on {first}, {difference}.",
        hint="Let all ranks run on machines of one kind, or give --level ordered.",
    )


def change(before: str, now: str) -> str | None:
    """Return a warning for a run that resumes on other hardware, or None if it is the same.

    Args:
        before: :func:`hardware_id` from the checkpoint; empty if the checkpoint has none.
        now: :func:`hardware_id` of this rank.
    """
    if before == now:
        return None
    where = f"on {before}" if before else "without --level exact"
    return (
        f"The steps so far were computed {where}, and those from here on {now}: the result will not have the bits of "
        "a run that was computed in one way."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
