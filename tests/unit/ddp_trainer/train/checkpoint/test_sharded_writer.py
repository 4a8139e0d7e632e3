"""A checkpoint that several ranks write is there when all have written, or not at all."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_cli import main
from ddp_trainer.train.checkpoint.checkpoint_files import (
    CheckpointDirectory,
    CorruptCheckpoint,
    manifest_if_complete,
    read,
)
from ddp_trainer.train.checkpoint.manifest import MANIFEST, Manifest
from ddp_trainer.train.checkpoint.sharded_writer import ShardedWriter, await_pieces, write_pieces
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive, pack
from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from ddp_trainer.train.distributed.group import Group
from tests.support.train_builders import ALONE, a_directory, a_manifest, sealed, write

STEP = 2
NAME = f"step-{STEP:08d}"


def a_part() -> Archive:
    return pack({"tensors": {}, "values": {}, "numbers": torch.arange(100.0)})


def publish(directory: CheckpointDirectory, timeout_seconds: float = 5.0) -> Manifest:
    """As the first of two ranks does."""
    others = partial(await_pieces, [1], timeout_seconds, ALONE)
    return directory.write(a_manifest(STEP), a_part(), others)


def published(directory: CheckpointDirectory) -> Manifest:
    """Of two ranks, the second of which is through before the first looks."""
    place = directory.prepare(STEP)
    write_pieces(place, 1, a_manifest(STEP), a_part())
    return publish(directory)


def test_what_two_ranks_wrote_is_published_as_one_with_both_digests(tmp_path: Path) -> None:
    manifest = published(a_directory(tmp_path))
    assert sorted(file.name for file in (tmp_path / NAME).iterdir()) == [MANIFEST, "pieces-00001.pt", "state.pt"]
    assert manifest_if_complete(tmp_path / NAME) == manifest
    assert read(tmp_path / NAME).directory == tmp_path / NAME
    assert manifest.total_bytes == sum(
        file.stat().st_size for file in (tmp_path / NAME).iterdir() if file.name != MANIFEST
    )


def test_a_rank_that_writes_nothing_is_named_and_nothing_is_published(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    write(directory, 1)
    directory.prepare(STEP)
    with pytest.raises(OSError, match=r"rank 1 has written nothing of its pieces for 0\.05 s"):
        publish(directory, timeout_seconds=0.05)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["CLAIM", "step-00000001"]


def test_a_rank_that_fails_says_why_and_nothing_is_published(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    place = directory.prepare(STEP)
    (place / "pieces-00001.pt").mkdir()
    with pytest.raises(IsADirectoryError):
        write_pieces(place, 1, a_manifest(STEP), a_part())
    with pytest.raises(OSError, match="rank 1 could not write its pieces: Is a directory"):
        publish(directory)
    assert [entry.name for entry in tmp_path.iterdir()] == ["CLAIM"]


def test_a_rank_without_memory_says_so_and_nobody_waits_for_it(tmp_path: Path) -> None:
    def fail() -> None:
        raise MemoryError

    directory = a_directory(tmp_path)
    place = directory.prepare(STEP)
    with pytest.raises(MemoryError):
        write_pieces(place, 1, a_manifest(STEP), replace(a_part(), ready=fail))
    with pytest.raises(OSError, match="rank 1 could not write its pieces: MemoryError"):
        publish(directory)


def test_the_first_rank_waits_no_more_for_a_rank_that_the_launcher_says_is_gone(tmp_path: Path) -> None:
    """Also while its own training waits for the save, and cannot notice."""
    directory, connections = a_directory(tmp_path), GlooSockets()
    connections.complete()
    group = Group(0, 2, "gloo", torch.device("cpu"), connections)
    begun = ShardedWriter(Layout(shard=2), group, timeout_seconds=600)._write(directory.prepare(STEP), directory)
    assert begun is not None
    threading.Timer(0.1, connections.call_off).start()
    with pytest.raises(OSError, match="a rank was lost while the ranks wrote their pieces"):
        begun(a_manifest(STEP), a_part())


@pytest.mark.parametrize("file", ["state.pt", "pieces-00001.pt"])
def test_a_bit_that_flipped_in_any_file_is_found(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(a_directory(tmp_path))
    damaged = tmp_path / NAME / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=f"{file} does not have the digest"):
        read(tmp_path / NAME)
    assert main(["verify", str(tmp_path)]) == 1
    assert f"{file} does not have the digest" in capsys.readouterr().err


def test_a_piece_that_is_missing_makes_a_checkpoint_torn(tmp_path: Path) -> None:
    published(a_directory(tmp_path))
    (tmp_path / NAME / "pieces-00001.pt").unlink()
    assert manifest_if_complete(tmp_path / NAME) is None
    with pytest.raises(CorruptCheckpoint, match=r"pieces-00001\.pt is missing"):
        read(tmp_path / NAME)


@pytest.mark.parametrize("name", ["../elsewhere.pt", "/etc/passwd", ".hidden"])
def test_a_manifest_names_no_files_outside_of_its_directory(name: str, tmp_path: Path) -> None:
    raw = json.loads(published(a_directory(tmp_path)).to_json())
    raw["pieces"][0]["file"] = name
    with pytest.raises(ValueError, match="does not match"):
        Manifest.from_json(sealed(raw))
