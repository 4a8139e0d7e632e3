"""Create the checkpoint manager and the progress file of a rank.

The checkpoint scope decides which ranks write: rank 0 of the group, or local rank 0 of each pod.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict

from ddp_trainer.common.constants import CheckpointScope
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.manifest import Identity
from ddp_trainer.train.checkpoint.progress_file import ProgressFile
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.metric_goal import TargetMetric
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.console import Progress


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
    path = config.checkpoint_dir
    if path is not None and _writes(config, env):
        token = secrets.token_hex(8)
        claim = WriteLease(path, generation=env.generation, fence=env.fence, run_id=env.run_id, token=token)
        directory = CheckpointDirectory(path, keep=config.keep, claim=claim, best=best)
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


def make_progress_file(
    config: Config, env: Environment, identity: Identity, alarm: Callable[[str], None]
) -> ProgressFile | None:
    """Return the progress file of the run with this identity; None if this rank writes none."""
    path = config.checkpoint_dir
    if path is None or not _writes(config, env):
        return None
    return ProgressFile(path, json.dumps(asdict(identity)), alarm)


def _writes(config: Config, env: Environment) -> bool:
    one_per_pod = config.checkpoint_scope is CheckpointScope.POD
    return config.checkpoint_dir is not None and (env.local_rank if one_per_pod else env.rank) == 0
