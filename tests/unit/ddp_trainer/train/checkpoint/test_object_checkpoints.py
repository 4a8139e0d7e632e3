"""Checkpoints of an object store have the guarantees of a directory; fsspec's local files replace the store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CheckpointDirectory
from ddp_trainer.train.checkpoint.object_checkpoints import ObjectCheckpoints, StoredCheckpoints
from ddp_trainer.train.checkpoint.write_lease import Claim, ClaimJournal, WriteLease
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.storage.object_storage import ObjectStorage, open_storage
from ddp_trainer.train.utils.errors import InvalidLease, StaleGeneration, StorageFull, StorageUnavailable
from tests.support.train_builders import a_manifest, a_state, latest, write

TOKENS = (f"token{number}" for number in itertools.count())


class Pods:
    """Writers with a disk each, and their common store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.store = root / "store"
        self.store.mkdir()
        self.alarms: list[str] = []
        self.skipped: list[str] = []

    def pod(self, generation: int, *, keep: int = 3, best: str | None = None) -> ObjectCheckpoints:
        """Return a writer that has not claimed the store yet."""
        token = next(TOKENS)
        claim = Claim(token, generation, generation, "run", 1)
        disk = self._root / token
        lease = WriteLease(disk, generation=generation, fence=generation, run_id="run", token=token)
        stored = StoredCheckpoints(open_storage(self.store))
        journal = ClaimJournal(stored.storage, claim, complete_names=stored.complete_names, alarm=self.alarms.append)
        goal = None if best is None else TargetMetric(best)
        return ObjectCheckpoints(stored, disk, keep=keep, claim=lease, journal=journal, best=goal)

    def writer(self, generation: int = 1, **options: Any) -> ObjectCheckpoints:
        """Return a writer that has claimed the store."""
        directory = self.pod(generation, **options)
        directory.open()
        return directory

    def newest(self) -> Checkpoint | None:
        """Return what a pod with an empty disk resumes from."""
        reader = self.pod(0)
        reader.path.mkdir()
        return reader.latest_checkpoint(self.skipped.append)

    def newest_step(self) -> int | None:
        return (found := self.newest()) and found.manifest.step

    def folders(self) -> list[str]:
        """Return the checkpoints in the store, published or not."""
        return sorted({stored_file.parent.name.partition(".")[0] for stored_file in self.store.glob("step-*/*")})

    def folder(self, step: int) -> Path:
        return next(self.store.glob(f"step-{step:08d}.*"))


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def test_the_newest_the_best_and_no_others_are_kept(pods: Pods) -> None:
    writer = pods.writer(keep=2, best="accuracy")
    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.6), (4, 0.7), (5, 0.8)):
        write(writer, step, metrics={"accuracy": accuracy})
    assert pods.folders() == ["step-00000002", "step-00000004", "step-00000005"]


def test_a_checkpoint_of_the_same_step_replaces_the_one_before(pods: Pods) -> None:
    writer = pods.writer()
    write(writer, 3)
    write(writer, 3, epoch=1)
    assert (pods.newest().manifest.epoch, pods.folders()) == (1, ["step-00000003"])


def test_a_writer_continues_in_a_later_group_and_keeps_out_those_between(pods: Pods) -> None:
    survivor = pods.writer(1)
    survivor.renew(generation=3, fence=3)
    with pytest.raises(StaleGeneration):
        pods.writer(2)
    write(survivor, 4)
    assert pods.newest_step() == 4


class Watched(ObjectStorage):
    """A store that calls ``before`` and ``after`` around a write to the journal."""

    before: Callable[[], None] = staticmethod(lambda: None)
    after: Callable[[], None] = staticmethod(lambda: None)

    def write(self, key: str, content: bytes | Path, *, if_absent: bool = False) -> None:
        is_journal = key.startswith("claims/")
        if is_journal:
            self.before()
        super().write(key, content, if_absent=if_absent)
        if is_journal:
            self.after()


def watched(writer: ObjectCheckpoints) -> Watched:
    """Return the storage of a writer, on which ``before`` and ``after`` can be set."""
    storage = writer._stored.storage
    storage.__class__ = Watched
    assert isinstance(storage, Watched)
    return storage


@pytest.mark.parametrize("saves", [0, 1, 5])
def test_a_stale_writer_cannot_publish_however_late_its_request_arrives(pods: Pods, saves: int) -> None:
    """The writer stops after it has read the journal; a new group claims, saves, and removes old entries."""
    old = pods.writer(1)
    write(old, 1)

    def overtake() -> None:
        storage.before = lambda: None
        new = pods.writer(2)
        for step in range(2, 2 + saves):
            write(new, step)

    storage = watched(old)
    storage.before = overtake
    with pytest.raises(StaleGeneration):
        write(old, 99)
    assert pods.newest_step() == 1 + saves


def test_a_publication_whose_answer_was_lost_is_not_lost_and_the_next_save_follows_it(pods: Pods) -> None:
    writer = pods.writer()

    def lose() -> None:
        storage.after = lambda: None
        raise StorageUnavailable("the connection was closed.")

    storage = watched(writer)
    storage.after = lose
    with pytest.raises(OSError, match="connection was closed"):
        write(writer, 1)
    assert pods.newest_step() == 1
    write(writer, 2)
    assert (pods.newest_step(), pods.folders()) == (2, ["step-00000001", "step-00000002"])


@pytest.mark.parametrize("error", [StorageUnavailable("503."), StorageFull("the quota is exceeded.")])
def test_a_failed_save_leaves_the_one_before_and_the_next_one_succeeds(pods: Pods, error: Exception) -> None:
    writer = pods.writer()
    write(writer, 1)

    def fail() -> None:
        raise error

    storage = watched(writer)
    storage.before = fail
    with pytest.raises(OSError, match=str(error).rstrip(".")):
        write(writer, 2)
    assert pods.newest_step() == 1
    storage.before = lambda: None
    write(writer, 3)
    assert pods.folders() == ["step-00000001", "step-00000003"]


def test_the_next_writer_removes_what_a_killed_one_has_not_published(pods: Pods) -> None:
    write(pods.writer(1), 1)
    unpublished = pods.store / "step-00000002.killed-1"
    unpublished.mkdir()
    (unpublished / "state.pt").write_bytes(b"half")
    assert pods.newest_step() == 1
    pods.writer(2)
    assert not (unpublished / "state.pt").exists()
    assert pods.newest_step() == 1


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("state.pt", b"", "state.pt has 0 of"),
        ("state.pt", "another byte", "digest"),
        ("state.pt", None, "state.pt is missing"),
        ("manifest.json", b"{}", "manifest.json is damaged"),
        ("manifest.json", None, "manifest.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_skipped(pods: Pods, file: str, content: bytes | str | None, reason: str) -> None:
    writer = pods.writer()
    write(writer, 1)
    write(writer, 2)
    damaged = pods.folder(2) / file
    if content is None:
        damaged.unlink()
    else:
        intact = damaged.read_bytes()
        damaged.write_bytes(content if isinstance(content, bytes) else intact[:-1] + bytes([intact[-1] ^ 1]))
    assert pods.newest_step() == 1
    [sentence] = pods.skipped
    assert reason in sentence


def test_a_copy_on_the_disk_spares_the_download(pods: Pods) -> None:
    written = write(pods.writer(), 1)
    reader = pods.writer(2)
    reader.latest_checkpoint(pods.skipped.append)
    (pods.folder(1) / "state.pt").write_bytes(bytes(written.size_bytes))  # would be refused if it were read again
    assert (latest(reader, pods.skipped.append).manifest, pods.skipped) == (written, [])


def test_what_is_on_the_disk_and_was_not_published_is_never_used(pods: Pods) -> None:
    writer = pods.writer()
    write(writer, 1)
    CheckpointDirectory.write(writer, a_manifest(2), a_state(2))
    assert latest(writer, pods.skipped.append).manifest.step == 1


def test_a_claim_that_cannot_be_parsed_is_an_error_and_not_an_empty_store(pods: Pods) -> None:
    write(pods.writer(), 1)
    (pods.store / "claims/000000000009.json").write_text("{}")
    with pytest.raises(InvalidLease, match=r"claims/000000000009\.json, is damaged"):
        pods.newest()


def test_a_copy_of_a_directory_can_be_resumed_from(pods: Pods) -> None:
    disk = pods.pod(1)
    disk.path.mkdir()
    CheckpointDirectory.write(disk, a_manifest(5), a_state(5))
    (disk.path / "step-00000005").rename(pods.store / "step-00000005")
    assert pods.newest_step() == 5
    write(pods.writer(), 6)
    assert pods.folders() == ["step-00000005", "step-00000006"]
