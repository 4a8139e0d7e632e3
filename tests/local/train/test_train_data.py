"""Real ranks with every kind of data: read ahead, streamed, partly unreadable, and slow on one rank."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ddp_trainer.common.constants import Exit
from tests.local.workloads.train_group import WorkerGroup

TASKS = "tests.local.workloads.train_data_tasks"
FLAGS = ("--log-steps", "1", "--warmup-steps", "5", "--schedule", "constant")


def trained(
    world: int, flags: list[str], directory: Path, *, generation: int = 0, env: dict[str, str] | None = None
) -> tuple[dict[int, float], dict[str, Any], list[dict[str, Any]]]:
    """Loss of each step, summary and all events of a run that succeeds."""
    with WorkerGroup(world, [*FLAGS, *flags], directory=directory, generation=generation, env=env) as group:
        events = list(group.events())
        assert group.finish() == [0] * world, group.stderr()
    (summary,) = [event["summary"] for event in events if event["event"] == "summary"]
    assert (summary["samples_lost"], summary["samples_repeated"]) == (0, 0)
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}, summary, events


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_slow_rank_owns_fewer_slices_and_nothing_else_changes(tmp_path: Path) -> None:
    flags = ["--task", f"{TASKS}:SlowDigits", "--max-steps", "35", "--balance", "dynamic"]
    alone, _, _ = trained(1, flags, tmp_path)
    losses, _, events = trained(2, flags, tmp_path, env={"SLOW_RANK": "1"})
    balanced = [event["batch_slices"] for event in events if event["event"] == "balanced"]
    assert balanced, events
    assert all(sum(batch_slices) == 8 and batch_slices[1] < batch_slices[0] for batch_slices in balanced)
    assert losses == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("task", ["StreamedDigits", "ResumableDigits"])
def test_a_stream_goes_on_at_another_world_size_where_it_was_committed(task: str, tmp_path: Path) -> None:
    flags = ["--task", f"{TASKS}:{task}", "--global-batch", "30", "--max-steps"]
    alone, _, _ = trained(1, [*flags, "9"], tmp_path)
    saved = ["--checkpoint-dir", str(tmp_path / "c")]
    losses, _, _ = trained(2, [*flags, "3", *saved], tmp_path)
    more, _, _ = trained(3, [*flags, "9", *saved], tmp_path, generation=1)
    assert sorted(more) == [4, 5, 6, 7, 8, 9]
    assert losses | more == pytest.approx(alone, rel=1e-4)


def test_what_was_read_ahead_is_not_lost_with_a_rank_and_its_readers_end_with_it(tmp_path: Path) -> None:
    flags = ["--epochs", "2", "--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-steps", "10"]
    alone, _, _ = trained(1, flags[:2], tmp_path)
    with WorkerGroup(2, [*FLAGS, *flags, "--loader-workers", "1"], directory=tmp_path) as group:
        group.wait_for_step(21)  # the second save has waited for the first
        readers = [reader for rank in group.ranks for reader in children(rank.pid)]
        watched = [os.pidfd_open(reader) for reader in readers]
        assert len(readers) == 2
        for rank in group.ranks:
            rank.send_signal(signal.SIGKILL)
        group.finish()
    for descriptor in watched:
        # Readable once the process has ended.
        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)
    losses, _, events = trained(3, [*flags, "--loader-workers", "2", "--prefetch", "4"], tmp_path, generation=1)
    (started,) = [event for event in events if event["event"] == "started"]
    assert 10 <= started["resumed_step"] < 46
    assert losses == pytest.approx({step: alone[step] for step in losses}, rel=1e-4)
    assert not any(is_alive(reader) for reader in readers)


def test_a_signal_to_all_processes_ends_the_step_in_good_order(tmp_path: Path) -> None:
    flags = ["--epochs", "300", "--checkpoint-dir", str(tmp_path / "c"), "--loader-workers", "1"]
    with WorkerGroup(2, [*FLAGS, *flags], directory=tmp_path) as group:
        group.wait_for_step(5)
        for rank in group.ranks:
            for pid in (*children(rank.pid), rank.pid):
                os.kill(pid, signal.SIGTERM)
        assert group.finish() == [Exit.TERMINATED] * 2, group.stderr()
    assert list((tmp_path / "c").glob("step-*"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of twenty small images, one of which is torn."""
    folder = tmp_path_factory.mktemp("images")
    for name, colour in (("cats", (250, 40, 40)), ("dogs", (40, 40, 250))):
        (folder / "train" / name).mkdir(parents=True)
        (folder / "test" / name).mkdir(parents=True)
        for number in range(20):
            side = "test" if number < 4 else "train"
            Image.new("RGB", (20, 16 + number), colour).save(folder / side / name / f"{number:02}.png")
    torn = folder / "train" / "dogs" / "10.png"
    torn.write_bytes(torn.read_bytes()[:40])
    (folder / "test" / "cats" / "01.png").write_text("no image")
    return folder


def test_images_that_cannot_be_read_are_skipped_named_and_counted(images: Path, tmp_path: Path) -> None:
    flags = ["--task", "image-folder", "--data", str(images), "--image-size", "16", "--model", "cnn:width=4"]
    flags += ["--global-batch", "10", "--epochs", "3", "--on-bad-sample", "skip"]
    alone, summary, _ = trained(1, flags, tmp_path)
    losses, also, events = trained(2, [*flags, "--loader-workers", "1"], tmp_path)
    assert losses == pytest.approx(alone, rel=1e-4)
    assert summary["samples_skipped"] == also["samples_skipped"] == 3
    assert summary["metrics"] == pytest.approx(also["metrics"], rel=1e-4)
    messages = [event["text"] for event in events if event["event"] == "note"]
    named = " ".join(messages)
    assert f"The image {images}/test/cats/01.png cannot be read: it is not an image, or it is damaged." in named
    assert len(messages) <= 2


def test_text_is_learnt_by_two_ranks(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.mkdir()
    for number in range(12):
        (words / f"{number}.txt").write_text(f"all work and no play makes jack a dull boy {number % 3}\n" * 20)
    flags = ["--task", "text", "--data", str(words), "--window", "32", "--model", "gpt:layers=1,heads=2,width=32"]
    losses, summary, _ = trained(2, [*flags, "--max-steps", "25", "--global-batch", "16"], tmp_path)
    assert losses[25] < losses[1] / 1.5
    assert summary["metrics"]["bits_per_byte"] == pytest.approx(summary["loss"] / 0.693147, rel=1e-4)
