"""Choose the state that a new worker group resumes from, and distribute it: a rank's state in memory, or a checkpoint.

:func:`find_state` is the entry point. :func:`broadcast_latest_checkpoint` gives all ranks the newest checkpoint.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from ddp_trainer.train.checkpoint.checkpoint_files import (
    Checkpoint,
    CorruptCheckpoint,
    manifest_if_complete,
    unpack,
    verify_files,
)
from ddp_trainer.train.checkpoint.manifest import PAYLOAD, Manifest
from ddp_trainer.train.checkpoint.progress_file import RunProgress
from ddp_trainer.train.checkpoint.state_transfer import broadcast_state, exchange_states
from ddp_trainer.train.config.goodput_account import Account
from ddp_trainer.train.distributed.group import Group

_NOTHING = -1
_VERIFIED: Final = "verified"
_UNVERIFIED: Final = "unverified"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Random number of the running kernel, the same in all containers of a machine."""


class Receive(NamedTuple):
    """Way in which a rank receives a state."""

    is_wanted: bool
    """False if it needs no state."""
    targets: Callable[[], Mapping[str, Any]]
    """Returns tensors to receive into, see :func:`.broadcast_state`; called only if a state is received."""


NEW_MEMORY: Final = Receive(is_wanted=True, targets=dict)


def broadcast_latest_checkpoint(
    own: Checkpoint | None, group: Group, demand: Callable[[Manifest], None], receive: Receive = NEW_MEMORY
) -> Checkpoint | None:
    """Return the newest checkpoint that any rank has, on every rank; None without one. Every rank must call it.

    Pods with separate volumes may hold different steps, and a new pod may hold none.

    Args:
        own: This rank's newest checkpoint, or None.
        group: The ranks.
        demand: Called on every rank with the manifest before the state is sent; raises to refuse it.
        receive: How this rank receives the state, if it cannot read the checkpoint.
    """
    steps = group.gather(_NOTHING if own is None else own.manifest.step)
    if max(steps) == _NOTHING:
        return None
    holder = steps.index(max(steps))
    return from_rank(holder, own, group, demand, receive)


def from_rank(
    holder: int,
    own: Checkpoint | None,
    group: Group,
    demand: Callable[[Manifest], None] = lambda _: None,
    receive: Receive = NEW_MEMORY,
) -> Checkpoint:
    """Return the holder's checkpoint on every rank; every rank must call it.

    A rank that sees the directory of the checkpoint reads it there. The holder sends the state to the other ones.
    """
    held = own if group.rank == holder else None
    manifest = Manifest.from_json(group.broadcast(_encode(held, lambda it: it.manifest.to_json()), holder).decode())
    demand(manifest)
    place = group.broadcast(_encode(held, _place), holder).decode(errors="surrogateescape")
    is_verified = not place.startswith(_UNVERIFIED)
    found = held or (_find(manifest, place, is_verified=is_verified) if receive.is_wanted and place else None)
    lacks = receive.is_wanted and found is None
    lacking = [rank for rank, is_lacking in enumerate(group.gather(int(lacks))) if is_lacking]
    if lacking:
        state, targets = None if held is None else unpack(held), receive.targets() if lacks else None
        if len(lacking) == 1:
            # A broadcast would also send the state to ranks that drop it, and its pieces wait for each other.
            state = exchange_states(state, [(holder, lacking[0])], group, targets=targets)
        else:
            state = broadcast_state(state, holder, group, wanted=lacks, targets=targets)
        found = found or Checkpoint(manifest, state=state, is_verified=is_verified)
    return found or Checkpoint(manifest, is_verified=is_verified)


def _encode(held: Checkpoint | None, describe: Callable[[Checkpoint], str]) -> bytes | None:
    return None if held is None else describe(held).encode(errors="surrogateescape")


def _place(checkpoint: Checkpoint) -> str:
    """Return whether a checkpoint is verified, the identity of its payload, and its directory; empty if in memory."""
    directory = checkpoint.directory
    state = _VERIFIED if checkpoint.is_verified else _UNVERIFIED
    return "" if directory is None else f"{state} {file_identity(directory)} {directory.absolute()}"


def file_identity(directory: Path) -> str:
    """Return a text that is the same where the same version of a payload is read, by all processes of one machine."""
    status = (directory / PAYLOAD).stat()
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()
    return f"{machine}:{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"


def _find(manifest: Manifest, place: str, *, is_verified: bool) -> Checkpoint | None:
    """Return the holder's checkpoint if this rank sees it, else None.

    If the holder has verified it, and this rank does not read the very same file, it verifies its own.
    """
    _, identity, name = place.split(" ", 2)
    directory = Path(name)
    if manifest_if_complete(directory) != manifest:
        return None
    try:
        # The ranks verify the files of a sharded checkpoint together.
        if is_verified and not manifest.pieces and file_identity(directory) != identity:
            verify_files(directory, manifest.files)
    except (CorruptCheckpoint, OSError):
        return None
    return Checkpoint(manifest, directory, is_verified=is_verified)


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


class ResumeSource(NamedTuple):
    """State that a rank resumes from."""

    checkpoint: Checkpoint | None
    """State to load; None if this rank already holds it, or no rank has any."""
    is_durable: bool = False
    """True if the state is on a disk."""


def progress_key(step: int, *, is_evaluated: bool = False) -> int:
    """Return a number that grows with every step, and with an evaluation after it.

    >>> sorted([progress_key(7), progress_key(6, is_evaluated=True), progress_key(6)])
    [12, 13, 14]
    """
    return 2 * step + is_evaluated


def find_state(
    group: Group,
    held: int | None,
    *,
    own: Callable[[], Checkpoint],
    receive: Receive,
    newest: Callable[[], Checkpoint | None],
    demand: Callable[[Manifest], None],
) -> ResumeSource:
    """Agree on the state to resume from and receive it; every rank must call it.

    Args:
        group: The ranks.
        held: :func:`progress_key` of the state that this rank holds; None if it holds none.
        own: Returns that state; called on one rank if others lack it.
        receive: How this rank receives a state that it does not hold.
        newest: Returns the newest checkpoint that this rank sees; called only if no rank holds a state.
        demand: Raises to refuse the state of another run.
    """
    all_held = group.gather(_NOTHING if held is None else held)
    furthest = max(all_held)
    if furthest == _NOTHING:
        return ResumeSource(broadcast_latest_checkpoint(newest(), group, demand, receive), is_durable=True)
    if min(all_held) == furthest:
        return ResumeSource(None)
    source = all_held.index(furthest)
    lacks = receive._replace(is_wanted=receive.is_wanted and held != furthest)
    checkpoint = from_rank(source, own() if group.rank == source else None, group, demand, lacks)
    return ResumeSource(None if held == furthest else checkpoint)
