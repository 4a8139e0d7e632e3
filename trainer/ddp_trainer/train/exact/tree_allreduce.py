"""All-reduce in the fixed order of the reduction tree, from the sums of each rank's subtrees.

The algorithm is a reduce-scatter with a fixed order of additions, and an all-gather. Every rank receives one slice of
all subtrees, adds them in the order of the tree, and sends the result to all ranks. If every rank owns one whole
subtree, it moves as many bytes as a ring. Otherwise each rank sends one slice for every subtree that it owns,
O(log slices). The main entry point is :func:`exchange`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.reduction_tree import BinaryCounter, TreeNode
from ddp_trainer.train.utils.collective_names import ALL_GATHER

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
