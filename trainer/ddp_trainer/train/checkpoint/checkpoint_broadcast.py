"""Distribute the newest checkpoint of any rank to all ranks.

:func:`broadcast_latest_checkpoint` finds the rank with the newest checkpoint, :func:`from_rank` broadcasts one, and
:func:`sync_progress` merges the progress files. All use the collectives of
:class:`~ddp_trainer.train.distributed.group.Group`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, manifest_if_complete, pack_checkpoint, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.progress_file import RunProgress
from ddp_trainer.train.config.goodput_account import Account
from ddp_trainer.train.distributed.group import Group

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Found:
    """Newest checkpoint of all ranks, available on every rank, and the rank that had it."""

    checkpoint: Checkpoint
    rank: int


def broadcast_latest_checkpoint(
    own: Checkpoint | None, group: Group, demand: Callable[[Manifest], None]
) -> Found | None:
    """Broadcast the newest checkpoint that any rank has; None without one. Every rank must call it.

    Pods with separate volumes may hold different steps, and a new pod may hold none.

    Args:
        own: This rank's newest checkpoint, or None.
        group: The ranks.
        demand: Called on every rank with the manifest before the payload is sent; raises to refuse it.
    """
    steps = group.gather(_NOTHING if own is None else own.manifest.step)
    if max(steps) == _NOTHING:
        return None
    holder = steps.index(max(steps))
    return Found(from_rank(holder, own, group, demand), holder)


def from_rank(
    holder: int, own: Checkpoint | None, group: Group, demand: Callable[[Manifest], None] = lambda _: None
) -> Checkpoint:
    """Return the holder's checkpoint on every rank; every rank must call it."""
    mine = own if group.rank == holder else None
    text = group.broadcast(None if mine is None else mine.manifest.to_json().encode(), holder)
    manifest = Manifest.from_json(text.decode())
    demand(manifest)
    if manifest.pieces:
        return _in_pieces(mine, manifest, holder, group)
    payload = group.broadcast(None if mine is None else mine.payload, holder)
    return Checkpoint(manifest, payload)


def _in_pieces(mine: Checkpoint | None, manifest: Manifest, holder: int, group: Group) -> Checkpoint:
    """Return the sharded checkpoint if every rank sees it; else the holder sends the complete state."""
    place = group.broadcast(None if mine is None else bytes(cast("Path", mine.directory)), holder)
    directory = Path(os.fsdecode(place))
    if not sum(group.gather(int(manifest_if_complete(directory) != manifest))):
        return Checkpoint(manifest, b"", directory)
    whole = None if mine is None else pack_checkpoint(unpack(mine), manifest)
    return Checkpoint(manifest, group.broadcast(None if whole is None else whole.payload, holder))


def sync_progress(own: RunProgress, group: Group, now: float) -> RunProgress:
    """Return the furthest progress of all ranks' progress files; every rank must call it.

    The account is the one with the latest time; accounts of several ranks cannot be added.

    Args:
        own: This rank's reading.
        group: The ranks.
        now: Start time of a new run, in seconds since the Unix epoch.
    """
    first = own.first_start or now
    numbers = torch.tensor([own.highest_step, own.lost_steps, -first], dtype=torch.float64, device=group.device)
    highest, lost, first = group.read(group.max(numbers))
    known = group.gather(int(own.account.until * 1e6))
    account = group.broadcast(own.account.pack(), known.index(max(known)))
    return RunProgress(int(highest), int(lost), -first, Account.unpack(account))
