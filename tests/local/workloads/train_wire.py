"""A rank that adds up random tensors along the tree, and says whether the bits are those of one rank alone."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise

import torch
from torch import Tensor

from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact import tree_allreduce
from ddp_trainer.train.exact.tree_allreduce import TreeSum
from ddp_trainer.train.utils.value_digest import sha256

SHAPES = ((7, 3), (), (129,), (2, 0), (5, 5, 5), (1,))
TYPES = (torch.float32, torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float32)
CPU = torch.device("cpu")
UNEVEN = {2: (0, 6), 3: (0, 1, 6)}
"""World → first slices of its ranks, as dynamic balance might give them."""


def leaf(slice_index: int) -> list[Tensor]:
    """What a slice gives: numbers so unlike in size that any other association has other bits."""
    generator = torch.Generator().manual_seed(slice_index)
    return [
        (torch.randn(shape, generator=generator) * 10.0 ** (slice_index % 5)).to(kind)
        for shape, kind in zip(SHAPES, TYPES, strict=True)
    ]


def zeros() -> list[Tensor]:
    return [torch.zeros_like(item) for item in leaf(0)]


def total(tree: TreeSum, own: range) -> str:
    for slice_index in own:
        # Every third gives nothing.
        if slice_index % 3 != 2:
            tree.put(slice_index, leaf(slice_index))
    return sha256(tree.total())


def main() -> int:
    batch_slices = int(os.environ["TREE_SLICES"])
    alone = total(TreeSum(batch_slices, Group(0, 1, "none", CPU), zeros), range(batch_slices))
    env = Environment.from_environ(os.environ)
    group = Group.join(env, CPU, 60)
    tree = TreeSum(batch_slices, group, zeros)
    found = []
    for bucket_bytes, small_bytes in ((1 << 20, 1 << 20), (1 << 20, 0), (100, 0), (1, 600)):
        tree_allreduce.BUCKET_BYTES, tree_allreduce.SMALL_BYTES = bucket_bytes, small_bytes  # type: ignore[misc] # to reach every path
        found.append(total(tree, tree.local_slices))
    tree.assign_slices([range(start, stop) for start, stop in pairwise([*UNEVEN[group.world_size], batch_slices])])
    found.append(total(tree, tree.local_slices))
    if group.rank == 0:
        print(json.dumps({"event": "sums", "alone": alone, "together": found}), flush=True)
    group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
