"""A checkpoint is written behind the training, and not beside it."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.snapshot import Snapshot, Writing
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.utils.errors import StaleGeneration
from tests.support.train_builders import ALONE, a_directory, a_manifest, a_state


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def a_lease(path: Path, generation: int = 0) -> WriteLease:
    return WriteLease(path, generation=generation, fence=generation, run_id="run", token=f"of {generation}")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
@pytest.mark.parametrize("behind", [True, False])
def test_only_a_thread_that_writes_behind_the_training_gives_way_to_it(behind: bool) -> None:
    before, seen = niceness(), list[int]()

    def write(draft: Manifest, _: Archive) -> Manifest:
        seen.append(niceness())
        return replace(draft, size_bytes=1)

    writing = Writing(write, a_manifest(1), a_state(1), time.monotonic())
    if behind:
        writing.start()
        writing.wait()
    else:
        writing.run()
    assert (writing.error, writing.size_bytes > 0) == (None, True)
    assert seen == [min(before + 10, 19) if behind else before]
    assert niceness() == before


class Slow(CheckpointDirectory):
    """A directory whose writes wait for ``let``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep=1, claim=a_lease(path))
        self.let = threading.Event()

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        self.let.wait()
        return super().write(draft, archive)


class Told(NoopRankRecorder):
    """Counts the outcomes of saves."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = self.saved = self.failed = 0
        self.failures_in_a_row: list[float | None] = []

    def add(self, metric: str, amount: float = 1.0) -> None:
        self.skipped += metric == cell(Metric.CHECKPOINT_SAVES, "skipped")
        self.failed += metric == cell(Metric.CHECKPOINT_SAVES, "failure")

    def put(self, metric: str, value: float | None) -> None:
        if metric == Metric.CHECKPOINT_FAILURES:
            self.failures_in_a_row.append(value)

    def checkpoint_saved(self, step: int, seconds: float, blocking_seconds: float, size_bytes: int) -> None:
        self.saved += 1


def a_saver(directory: CheckpointDirectory, metrics: Told | None = None, **options: Any) -> CheckpointManager:
    """Return the checkpoint manager of rank 0; a save is due every 10 s."""
    config = Config(checkpoint_dir=directory.path, checkpoint_seconds=10.0)
    options = {"alarm": pytest.fail, "note": print, "device": torch.device("cpu"), **options}
    return CheckpointManager(config, directory, keeps_time=True, recorder=metrics or Told(), **options)


def test_each_checkpoint_that_is_due_while_one_is_being_written_counts_as_skipped(tmp_path: Path) -> None:
    now, directory, metrics = [0.0], Slow(tmp_path), Told()
    saver = a_saver(directory, metrics, clock=lambda: now[0])
    saver.open()
    wanted = {}
    for second in range(9, 46):
        now[0] = float(second)
        if saver.should_save():
            wanted[second] = metrics.skipped
            saver.save(1, lambda: {"step": 1}, lambda: a_manifest(1))
    assert (wanted, metrics.skipped) == ({10: 0}, 3), "due at 20, 30 and 40 again"
    directory.let.set()
    saver.wait_for_save()
    assert (metrics.saved, saver.should_save()) == (1, True)


class Failing(CheckpointDirectory):
    """A directory whose writes raise the errors one by one."""

    errors: list[BaseException]

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        if self.errors:
            raise self.errors.pop()
        return super().write(draft, archive)


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device"), RuntimeError("odd")])
def test_a_save_that_fails_is_counted_and_the_next_one_tries_again(error: Exception, tmp_path: Path) -> None:
    directory, metrics = Failing(tmp_path, keep=1, claim=a_lease(tmp_path)), Told()
    directory.errors = [error, error]
    messages: list[str] = []
    saver = a_saver(directory, metrics, alarm=messages.append)
    saver.open()
    for step in (1, 2, 3):
        saver.save(step, lambda: {"step": 1}, lambda: a_manifest(1))
        saver.wait_for_save()
        assert saver.failure is (error if step < 3 else None)
    assert (metrics.failed, metrics.saved, len(messages)) == (2, 1, 2)
    assert metrics.failures_in_a_row == [1, 2, 0]
    assert "Training continues; older checkpoints are kept." in messages[0]


def test_training_waits_for_a_state_that_cannot_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Snapshot, "take", take)
    metrics, messages = Told(), list[str]()
    saver = a_saver(a_directory(tmp_path), metrics, alarm=messages.append)
    saver.open()
    saver.save(1, lambda: {"step": 1}, lambda: a_manifest(1))
    assert (saver.durable_step, metrics.failed) == (1, 0)
    assert messages == ["The state cannot be copied for a save: MemoryError. Training waits until it is written."]


def test_a_state_that_has_no_memory_is_a_failed_save_unless_other_ranks_wait_for_it(tmp_path: Path) -> None:
    def state() -> dict[str, object]:
        raise MemoryError

    metrics = Told()
    saver = a_saver(a_directory(tmp_path), metrics, alarm=print)
    saver.open()
    saver.save(1, state, lambda: a_manifest(1))
    assert (type(saver.failure), metrics.failed) == (MemoryError, 1)
    with pytest.raises(MemoryError):
        saver.save(2, state, lambda: a_manifest(2), together=True)


def saving(path: Path) -> tuple[Slow, CheckpointManager]:
    """Return a manager with an unfinished save, and its directory, which completes it."""
    directory = Slow(path)
    former = a_saver(directory)
    former.open()
    former.save(1, lambda: {"step": 1}, lambda: a_manifest(1))
    return directory, former


def test_ranks_that_read_the_directory_claim_it_after_the_last_save_of_the_group_before(tmp_path: Path) -> None:
    directory, former = saving(tmp_path)
    between, heir = a_saver(a_directory(tmp_path / "another")), a_saver(a_directory(tmp_path / "one more"))
    between.chain_after(former)
    heir.chain_after(between)
    threading.Timer(0.1, directory.let.set).start()
    heir.open(ALONE)
    assert former.durable_step == 1
    assert heir.latest_checkpoint() is None


def test_a_save_that_nobody_needs_ends_where_the_next_writer_claims_the_directory(tmp_path: Path) -> None:
    directory, former = saving(tmp_path)
    heir = a_saver(CheckpointDirectory(tmp_path, keep=1, claim=a_lease(tmp_path, generation=1)))
    heir.chain_after(former)
    heir.open()
    directory.let.set()
    heir.wait_for_save()
    with pytest.raises(StaleGeneration, match="generation 1 has claimed it"):
        former.wait_for_save()
