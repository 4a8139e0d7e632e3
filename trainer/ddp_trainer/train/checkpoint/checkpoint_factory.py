"""Create the checkpoint manager and the progress file of a rank.

The checkpoint scope decides which ranks write: rank 0 of the group, or local rank 0 of each pod.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ddp_trainer.common.constants import CheckpointScope
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.manifest import Identity
from ddp_trainer.train.checkpoint.progress_file import ProgressFile
from ddp_trainer.train.checkpoint.write_lease import Claim, ClaimJournal, WriteLease
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.console import Progress
from ddp_trainer.train.utils.locations import StorageUrl


def make_saver(
    config: Config,
    env: Environment,
    group: Group,
    recorder: RankRecorder,
    progress: Progress,
    best: TargetMetric | None = None,
    former: CheckpointManager | None = None,
) -> CheckpointManager:
    """Return this rank's checkpoint manager for a group: ``former``, if its part in saving is the same there.

    Otherwise, an unfinished save of this rank is not published: the next writer's claim invalidates it. If ranks need
    that save, they claim the directory later (:meth:`CheckpointManager.open`). ``best`` is the metric of the best
    checkpoint to keep, if any.
    """
    if former is not None and former.is_open and former.writes == _writes(config, env):
        former.renew(generation=env.generation, fence=env.fence, keeps_time=group.rank == 0)
        return former
    directory = None
    place = config.checkpoint_dir
    if place is not None and _writes(config, env):
        claim = Claim(secrets.token_hex(8), env.generation, env.fence, env.run_id, os.getpid())
        directory = open_checkpoints(place, claim, keep=config.keep, best=best, alarm=progress.warn_rank)
    saver = CheckpointManager(
        config,
        directory,
        keeps_time=group.rank == 0,
        recorder=recorder,
        alarm=progress.warn_rank,
        note=progress.log_message,
        device=group.device,
    )
    if former is not None:
        saver.chain_after(former)
    return saver


def open_checkpoints(
    place: Path | StorageUrl,
    claim: Claim,
    *,
    keep: int,
    best: TargetMetric | None = None,
    alarm: Callable[[str], None],
) -> CheckpointDirectory:
    """Return the checkpoints at a place for a writer with this claim.

    Args:
        place: Directory, or URL of an object store.
        claim: Token, generation and fence of the writer.
        keep: Number of newest checkpoints to keep.
        best: Metric whose best checkpoint is kept as well; None for none.
        alarm: Receives a sentence if an object store has no conditional writes.
    """
    path = local_directory(place)
    lease = WriteLease(path, **asdict(claim))
    if isinstance(place, Path):
        return CheckpointDirectory(path, keep=keep, claim=lease, best=best)
    from ddp_trainer.train.checkpoint.object_checkpoints import (  # noqa: PLC0415 - as above
        ObjectCheckpoints,
        StoredCheckpoints,
    )
    from ddp_trainer.train.storage.object_storage import open_storage  # noqa: PLC0415 - as above

    stored = StoredCheckpoints(open_storage(place))
    journal = ClaimJournal(stored.storage, claim, complete_names=stored.complete_names, alarm=alarm)
    return ObjectCheckpoints(stored, path, keep=keep, claim=lease, journal=journal, best=best)


def make_progress_file(
    config: Config, env: Environment, identity: Identity, alarm: Callable[[str], None]
) -> ProgressFile | None:
    """Return the progress file of the run with this identity; None if this rank writes none."""
    place = config.checkpoint_dir
    if place is None or not _writes(config, env):
        return None
    return ProgressFile(local_directory(place), json.dumps(asdict(identity)), alarm)


def _writes(config: Config, env: Environment) -> bool:
    one_per_pod = config.checkpoint_scope is CheckpointScope.POD
    return config.checkpoint_dir is not None and (env.local_rank if one_per_pod else env.rank) == 0


def local_directory(place: Path | StorageUrl) -> Path:
    """Return the directory of checkpoints, or the one in which they are prepared for a URL.

    The latter is below ``$TMPDIR``, one for each URL and user.
    """
    if isinstance(place, Path):
        return place
    digest = hashlib.sha256(place.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"ddp-checkpoints-{os.getuid()}" / digest
