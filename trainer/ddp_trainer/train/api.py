"""The reference trainer as a library: :func:`run` is the only entry point that a program needs.

:func:`run` imports torch late. Flags and files are checked, and SIGTERM is handled, before that import.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from ddp_trainer.common.constants import CheckpointScope, File
from ddp_trainer.process.recorder import NoopRankRecorder, RankRecorder
from ddp_trainer.train.checkpoint.summary import Outcome
from ddp_trainer.train.config.config import Config, check_unused_ranks
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.task import TASK_FLAGS, Task, load_task
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.stop_signals import StopRequest, exit_immediately
from ddp_trainer.train.observability.console import Mode, Progress, RunCompleted
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost
from ddp_trainer.train.utils.locations import StorageUrl

if TYPE_CHECKING:
    from ddp_trainer.train.distributed.group import Group
    from ddp_trainer.train.loop.run_context import ProcessContext
    from ddp_trainer.train.recovery.group_transition import GroupTransition


def run(
    config: Config,
    task: Task | None = None,
    recorder: RankRecorder | Callable[[], RankRecorder] | None = None,
    *,
    env: Environment | None = None,
    control: Control | None = None,
) -> Outcome:
    """Train, resuming from the newest checkpoint if there is one; call it in every process of the worker group.

    Args:
        config: The configuration.
        task: The task to train (default: the task that ``config.task`` names).
        recorder: The recorder of metrics, or a function that makes it once the rank is known (default: no metrics).
        env: This process's place in the group (default: read from the environment variables).
        control: The channel to the launcher, with which the process can join the next group when its group ends.

    Returns:
        The summary, and the exit code for the process.

    Raises:
        TrainError: Training failed for any reason except an error in the task's own code.
    """
    began = time.time()
    env = env or Environment.from_env(os.environ)
    config = with_defaults(config, env)
    progress = make_progress(config, env)
    stop = StopRequest(grace_seconds=env.grace_seconds, leave=exit_immediately)
    make_recorder = recorder if callable(recorder) else lambda: recorder or NoopRankRecorder()
    with stop.handle_signals(), closing(progress):
        _import_torch()
        from ddp_trainer.train.loop.run_context import ProcessContext  # noqa: PLC0415 - imports torch

        process = ProcessContext.outside_groups(env, progress, stop, began, control)
        flags = {name: value for name in TASK_FLAGS if (value := getattr(config, name)) is not None}
        outcome = _train(task or load_task(config.task, flags), config, process, make_recorder)
    # In every pod: a controller that sees the first pod succeed may delete the others, rank 0's among them.
    if env.local_rank == 0:
        publish_summary(outcome, config, progress)
    return outcome


def with_defaults(config: Config, env: Environment) -> Config:
    """Return the configuration, with the launcher's directories and the job's options where flags are unset."""
    checkpoint_dir = config.checkpoint_dir or env.checkpoint_dir
    scope = config.checkpoint_scope
    if isinstance(checkpoint_dir, StorageUrl):
        from ddp_trainer.train.storage.object_storage import require_client  # noqa: PLC0415 - only for object stores

        require_client(checkpoint_dir)
        scope = scope or CheckpointScope.JOB  # the scope of a job without URL may be that of the pods' volumes
    return replace(
        config,
        summary=config.summary or (env.run_dir / File.SUMMARY if env.run_dir is not None else None),
        checkpoint_dir=checkpoint_dir,
        checkpoint_scope=scope or env.checkpoint_scope,
        parallel=config.parallel or env.parallel,
        survive_on_nccl=config.survive_on_nccl or env.survives_on_nccl,
    )


def make_progress(config: Config, env: Environment) -> Progress:
    """Make the progress output: live on a terminal, plain lines on stderr, or JSON lines on stdout."""
    return Progress(*progress_output(config, env))


def progress_output(config: Config, env: Environment) -> tuple[Mode, TextIO]:
    """Return mode and stream of this rank's progress output; only rank 0 prints."""
    mode = Mode.LIVE if sys.stderr.isatty() else Mode.PLAIN
    if config.log_json:
        mode = Mode.JSON
    if env.rank != 0:
        mode = Mode.SILENT
    return mode, sys.stdout if mode is Mode.JSON else sys.stderr


def _import_torch() -> None:
    """Import torch with garbage collection off: there is no garbage, and the search takes a seventh of the time."""
    # torch's socket warnings repeat, over many lines, what our message about a lost peer contains in one.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    collects = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("torch")
        # The imported objects stay, so later collections can skip them.
        gc.freeze()
    finally:
        if collects:
            gc.enable()


def _train(task: Task, config: Config, process: ProcessContext, make_recorder: Callable[[], RankRecorder]) -> Outcome:
    # These import torch, which takes 0.9 s: errors found before do not wait for it.
    from ddp_trainer.train.distributed.device_selection import limit_threads  # noqa: PLC0415
    from ddp_trainer.train.recovery.group_transition import GroupTransition  # noqa: PLC0415
    from ddp_trainer.train.trainer import Trainer  # noqa: PLC0415

    limit_threads(process.env, config)
    parallelism = str(config.parallel) if config.is_model_sharded else config.strategy
    labels = {"precision": config.precision, "parallelism": parallelism}
    with Trainer(config, task, process) as trainer:
        transition = GroupTransition(config, process.control, process.stop, can_stay=trainer.can_join_next_group)
        env = transition.first(process.env)
        while env is not None:
            before = process
            try:
                check_unused_ranks(config.parallel, env)
                process = join_group(before, env, transition, config, make_recorder, labels)
                outcome = trainer.run(process)
            except PeerLost as err:
                ended = release_ended_group(transition, None if process is before else process.group, err)
            else:
                trainer.teardown_group(stays=False)
                if outcome.exit_code == 0:
                    process.group.release(json.dumps(outcome.summary.to_dict()).encode())
                process.group.close()
                return outcome
            trainer.teardown_group()
            env = transition.next(ended)
        return trainer.stop()


def join_group(
    process: ProcessContext,
    env: Environment,
    transition: GroupTransition,
    config: Config,
    make_recorder: Callable[[], RankRecorder],
    labels: Mapping[str, str],
) -> ProcessContext:
    """Join the worker group that ``env`` describes, and return the process context in it.

    Args:
        process: The context so far; its recorder is kept, once there is one.
        env: This process's place in the group.
        transition: The membership of this process in groups.
        config: The configuration.
        make_recorder: Makes the recorder of metrics; called once the rank is known.
        labels: Precision and parallelism (name of the strategy, or the layout) of the job, for the metrics.

    Raises:
        PeerLost: A rank was lost, or the launcher canceled the group before it was complete.
    """
    process.progress.show(*progress_output(config, env))
    group = transition.join(env)
    recorder = make_recorder() if isinstance(process.recorder, NoopRankRecorder) else process.recorder
    recorder.identity(
        rank=env.rank,
        local_rank=env.local_rank,
        world_size=env.world_size,
        backend=group.backend,
        device=str(group.device),
        parallel=config.parallel,
    )
    recorder.job(**labels)
    return replace(process, env=env, group=group, recorder=recorder)


def release_ended_group(transition: GroupTransition, joined: Group | None, err: PeerLost) -> PeerLost:
    """Free the device after the end of a group, and return the error without references to the group.

    Args:
        transition: The membership of this process in groups.
        joined: The group that has ended; None if it was not complete.
        err: The end of the group.

    Raises:
        PeerLost: This process cannot join another group.
    """
    if not transition.is_open:
        raise err
    if joined is not None:
        joined.has_lost = not isinstance(err, GroupEnded)
    transition.free_device(err)
    return err.without_traceback()


def publish_summary(outcome: Outcome, config: Config, progress: Progress) -> None:
    """Print the summary if ``--log-json`` is given, and write its file."""
    if config.log_json:
        progress.show_event(RunCompleted(outcome.summary.to_dict()))
    if config.summary is None:
        return
    try:
        outcome.summary.write(config.summary)
    except OSError as err:
        progress.log_message(f"The summary could not be written to {config.summary}: {err.strerror}.")
