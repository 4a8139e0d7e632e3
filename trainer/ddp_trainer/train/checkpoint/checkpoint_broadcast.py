"""Going on from the newest state that any rank has, wherever it lies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, copied, looks_whole, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.progress_file import Reading
from ddp_trainer.train.config.goodput_account import Account
from ddp_trainer.train.distributed.group import Group

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Found:
    """The newest checkpoint of all ranks, now on every rank, and which rank had it."""

    checkpoint: Checkpoint
    rank: int


def newest_of_all(own: Checkpoint | None, group: Group, demand: Callable[[Manifest], None]) -> Found | None:
    """Send the newest checkpoint that any rank sees to all; None when there is none. Every rank must call it.

    Pods with a volume each may hold different steps, and a new pod none at all. ``demand`` is called on every rank
    with the manifest before the payload travels, and may refuse it by raising.
    """
    steps = group.gather(_NOTHING if own is None else own.manifest.step)
    if max(steps) == _NOTHING:
        return None
    holder = steps.index(max(steps))
    return Found(from_rank(holder, own, group, demand), holder)


def from_rank(
    holder: int, own: Checkpoint | None, group: Group, demand: Callable[[Manifest], None] = lambda _: None
) -> Checkpoint:
    """The holder's checkpoint, on every rank; every rank must call it."""
    mine = own if group.rank == holder else None
    text = group.broadcast(None if mine is None else mine.manifest.to_json().encode(), holder)
    manifest = Manifest.from_json(text.decode())
    demand(manifest)
    if manifest.pieces:
        return _in_pieces(mine, manifest, holder, group)
    payload = group.broadcast(None if mine is None else mine.payload, holder)
    return Checkpoint(manifest, payload)


def _in_pieces(mine: Checkpoint | None, manifest: Manifest, holder: int, group: Group) -> Checkpoint:
    """A checkpoint in pieces where every rank sees it; else the holder puts the whole together, and sends that."""
    place = group.broadcast(None if mine is None else bytes(cast("Path", mine.directory)), holder)
    directory = Path(os.fsdecode(place))
    if not sum(group.gather(int(looks_whole(directory) != manifest))):
        return Checkpoint(manifest, b"", directory)
    whole = None if mine is None else copied(unpack(mine), manifest)
    return Checkpoint(manifest, group.broadcast(None if whole is None else whole.payload, holder))


def agreed(own: Reading, group: Group, now: float) -> Reading:
    """The furthest that any rank's odometer got; every rank must call it. ``now`` is when a new run begins.

    The account is that of the rank that knows of the latest moment: parts of several would not add up.
    """
    first = own.first_start or now
    numbers = torch.tensor([own.highest_step, own.lost_steps, -first], dtype=torch.float64, device=group.device)
    highest, lost, first = group.read(group.max(numbers))
    known = group.gather(int(own.account.until * 1e6))
    account = group.broadcast(own.account.pack(), known.index(max(known)))
    return Reading(int(highest), int(lost), -first, Account.unpack(account))
