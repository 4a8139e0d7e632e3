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
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from ddp_trainer.common.constants import File
from ddp_trainer.process.recorder import RankRecorder, SilentRankRecorder
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_rules import check_places
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.task import TASK_FLAGS, Task, load_task
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.stop_signals import StopRequest, leave_at_once
from ddp_trainer.train.loop.run_result import Outcome
from ddp_trainer.train.observability.console import Ended, Mode, Progress
from ddp_trainer.train.utils.errors import GroupEnds, PeerLost

if TYPE_CHECKING:
    from ddp_trainer.train.loop.process_context import ProcessContext
    from ddp_trainer.train.recovery.group_transition import GroupTransition


@dataclass(frozen=True, slots=True)
class _Given:
    config: Config
    env: Environment
    recorder: Callable[[], RankRecorder]
    """Called once the rank is known."""
    progress: Progress
    stop: StopRequest
    began: float
    control: Control | None


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
    env = env or Environment.from_environ(os.environ)
    config = with_defaults(config, env)
    progress = make_progress(config, env)
    stop = StopRequest(grace_seconds=env.grace_seconds, leave=leave_at_once)
    make_recorder = recorder if callable(recorder) else lambda: recorder or SilentRankRecorder()
    with stop.listening(), closing(progress):
        given = _Given(config, env, make_recorder, progress, stop, began, control)
        _import_torch()
        outcome = _train(task or load_task(config.task, task_flags(config)), given)
    # In every pod: a controller that sees the first pod succeed may delete the others, rank 0's among them.
    if env.local_rank == 0:
        _publish(outcome, config, progress)
    return outcome


def task_flags(config: Config) -> dict[str, Any]:
    """Return the task's flags that are set, by name."""
    given = {name: getattr(config, name) for name in TASK_FLAGS}
    return {name: value for name, value in given.items() if value is not None}


def with_defaults(config: Config, env: Environment) -> Config:
    """Return the configuration, with the launcher's directories and the job's options where flags are unset."""
    return replace(
        config,
        summary=config.summary or (env.run_dir / File.SUMMARY if env.run_dir is not None else None),
        checkpoint_dir=config.checkpoint_dir or env.checkpoint_dir,
        checkpoint_scope=config.checkpoint_scope or env.checkpoint_scope,
        parallel=config.parallel or env.parallel,
        survive_on_nccl=config.survive_on_nccl or env.survives_on_nccl,
    )


def make_progress(config: Config, env: Environment) -> Progress:
    """Make the progress output: live on a terminal, plain lines on stderr, or JSON lines on stdout."""
    return Progress(*shown(config, env), time.monotonic, every_seconds=config.log_seconds, every_steps=config.log_steps)


def shown(config: Config, env: Environment) -> tuple[Mode, TextIO]:
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


def _train(task: Task, given: _Given) -> Outcome:
    # These import torch, which takes 0.9 s: errors found before do not wait for it.
    from ddp_trainer.train.distributed.device_selection import limit_threads  # noqa: PLC0415
    from ddp_trainer.train.distributed.group import Group  # noqa: PLC0415
    from ddp_trainer.train.loop.process_context import ProcessContext  # noqa: PLC0415
    from ddp_trainer.train.recovery.group_transition import GroupTransition  # noqa: PLC0415
    from ddp_trainer.train.trainer import Trainer  # noqa: PLC0415

    limit_threads(given.env, given.config)
    around = ProcessContext(
        env=given.env,
        group=Group.alone(),
        recorder=SilentRankRecorder(),
        progress=given.progress,
        stop=given.stop,
        began=given.began,
        control=given.control,
    )
    with Trainer(given.config, task, around) as run:
        passage = GroupTransition(given.config, given.control, given.stop, can_stay=run.can_stay)
        env = passage.first(given.env)
        while env is not None:
            before = around
            try:
                around = _in_group(around, given, passage, env)
                outcome = run.go(around)
            except PeerLost as err:
                if not passage.is_open:
                    raise
                ended = err.alone()
                if around is not before:
                    around.group.has_lost = not isinstance(err, GroupEnds)
                passage.free_device(err)
            else:
                run.abandon(stays=False)
                if outcome.exit_code == 0:
                    around.group.release(json.dumps(outcome.summary.to_dict()).encode())
                around.group.close()
                return outcome
            run.abandon()
            env = passage.next(ended)
        return run.leave()


def _in_group(around: ProcessContext, given: _Given, passage: GroupTransition, env: Environment) -> ProcessContext:
    """Join the group that ``env`` describes, and return the process context for it."""
    given.progress.show(*shown(given.config, env))
    check_places(given.config.parallel, env)
    group = passage.join(env)
    recorder = given.recorder() if isinstance(around.recorder, SilentRankRecorder) else around.recorder
    recorder.identity(
        rank=env.rank,
        local_rank=env.local_rank,
        world_size=env.world_size,
        backend=group.backend,
        device=str(group.device),
        parallel=given.config.parallel,
    )
    config = given.config
    recorder.job(precision=config.precision, parallelism=str(config.parallel) if config.spreads else config.strategy)
    return replace(around, env=env, group=group, recorder=recorder)


def _publish(outcome: Outcome, config: Config, progress: Progress) -> None:
    if config.log_json:
        progress.tell(Ended(outcome.summary.to_dict()))
    if config.summary is None:
        return
    try:
        outcome.summary.write(config.summary)
    except OSError as err:
        progress.note(f"The summary could not be written to {config.summary}: {err.strerror}.")
