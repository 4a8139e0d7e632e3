"""Whatever damages the newest checkpoint, the run goes on from the one before, with one warning."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_cli import main
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory, CorruptCheckpoint, unpack
from ddp_trainer.train.checkpoint.manifest import FORMAT, MANIFEST, PAYLOAD, SHARDED, CheckpointFile, Manifest
from tests.support.train_builders import a_directory, a_manifest, a_state, sealed, write

PIECES = "pieces-00001.pt"


def two_checkpoints(path: Path, *, sharded: bool = False) -> tuple[CheckpointDirectory, Path]:
    """A directory with the steps 1 and 2, and the directory of step 2."""
    directory = a_directory(path)
    write(directory, 1, metrics={"accuracy": 0.5})

    def others(place: Path) -> list[CheckpointFile]:
        content = b"piece"
        (place / PIECES).write_bytes(content)
        return [CheckpointFile(file=PIECES, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))]

    directory.write(a_manifest(2, metrics={"accuracy": 0.7}), a_state(2), others if sharded else None)
    return directory, path / "step-00000002"


def demand_fallback(directory: CheckpointDirectory, damaged: Path) -> None:
    messages: list[str] = []
    found = directory.latest_checkpoint(messages.append)
    assert found is not None
    assert found.manifest.step == unpack(found)["step"] == 1
    (sentence,) = messages
    assert str(damaged) in sentence
    assert len(sentence.splitlines()) == 1
    write(directory, 3)  # pruning looks at the damaged one, too
    again = directory.latest_checkpoint(pytest.fail)
    assert again is not None
    assert again.manifest.step == 3


def with_field(**changes: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda raw: raw | changes


MANIFESTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "size infinite": with_field(size_bytes=float("inf")),
    "size absurd": with_field(size_bytes=10**30),
    "size negative": with_field(size_bytes=-1),
    "step too large for ranks": with_field(step=2**63),
    "a field of no version": with_field(steps=2),
    "step a text": with_field(step="2"),
    "step of another checkpoint": with_field(step=7),
    "written in no year": with_field(written_at=1e300),
    "no identity": with_field(identity=None),
    "pieces a number": with_field(pieces=1),
    "a piece with a NUL": with_field(pieces=[{"file": "a\0", "sha256": "", "size_bytes": 0}]),
    "a piece with half a character": with_field(pieces=[{"file": "\ud800", "sha256": "", "size_bytes": 0}]),
    "metrics a number": with_field(metrics=3),
    "metrics of texts": with_field(metrics={"accuracy": "high"}),
    "format a list": with_field(format=[2]),
    "format infinite": with_field(format=float("inf")),
    "step of a later format a text": with_field(format=FORMAT + 1, step="2"),
    "a later format of no year": with_field(format=FORMAT + 1, written_at="now"),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_cannot_be_meant_is_damaged_with_a_digest_that_fits_it(
    change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    directory, newest = two_checkpoints(tmp_path)
    raw = json.loads((newest / MANIFEST).read_text())
    (newest / MANIFEST).write_text(sealed(change(raw)))
    demand_fallback(directory, newest)


def test_a_manifest_without_a_digest_is_damaged(tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    raw = json.loads((newest / MANIFEST).read_text())
    del raw["manifest_sha256"]
    (newest / MANIFEST).write_text(json.dumps(raw))
    demand_fallback(directory, newest)


CONTENTS = {
    "a list": b"[{}]",
    "a number": b"1",
    "nested": b"[" * 200_000,
    "nested objects": b'{"a":' * 200_000,
    "many digits": b'{"format": ' + b"9" * 5000 + b"}",
    "not text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_manifest_that_parsers_fail_on_is_damaged(content: bytes, tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    (newest / MANIFEST).write_bytes(content)
    demand_fallback(directory, newest)


@pytest.mark.parametrize("name", [MANIFEST, PAYLOAD])
def test_a_file_larger_than_any_memory_is_not_read(name: str, tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    with (newest / name).open("r+b") as stream:
        stream.truncate(1 << 43)
    demand_fallback(directory, newest)


@pytest.mark.parametrize("name", [MANIFEST, PAYLOAD])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda file: file.symlink_to(file)], ids=["pipe", "dir", "loop"])
def test_what_is_no_file_does_not_hold_the_run_up(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    (newest / name).unlink()
    make(newest / name)
    demand_fallback(directory, newest)


def flipped(content: bytes, place: int) -> bytes:
    at = place % (8 * len(content))
    return content[: at // 8] + bytes([content[at // 8] ^ 1 << at % 8]) + content[at // 8 + 1 :]


DAMAGE = st.one_of(
    st.binary(max_size=200).map(lambda new: lambda _: new),
    st.integers(0, 10_000).map(lambda size: lambda old: old[: size % len(old)]),
    st.integers(0, 100_000).map(lambda place: lambda old: flipped(old, place)),
    st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=8)).map(
        lambda it: lambda old: old[: it[0] % len(old)] + it[1] + old[it[0] % len(old) + len(it[1]) :]
    ),
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists).map(
        lambda document: lambda _: json.dumps(document).encode()
    ),
)


@given(damage=DAMAGE, name=st.sampled_from([MANIFEST, PAYLOAD, PIECES]))
@example(damage=lambda old: old.replace(b'"format": %d' % SHARDED, b'"format": %d' % (FORMAT + 1)), name=MANIFEST)
def test_arbitrary_damage_is_harmless_or_noticed(
    damage: Callable[[bytes], bytes], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("checkpoints")
    directory, newest = two_checkpoints(path, sharded=True)
    intact = Manifest.from_json((newest / MANIFEST).read_text())
    old = (newest / name).read_bytes()
    (newest / name).write_bytes(damage(old))
    messages: list[str] = []
    found = directory.latest_checkpoint(messages.append)
    assert found is not None
    if messages:
        assert found.manifest.step == 1
        assert len(messages) == 1
    else:
        assert found.manifest == intact
        assert name == MANIFEST or (newest / name).read_bytes() == old
    assert main(["verify", str(path)]) == (1 if messages else 0)
    shutil.rmtree(path)


def test_a_pipe_of_which_a_manifest_says_that_it_is_empty_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PAYLOAD)
    with pytest.raises(CorruptCheckpoint, match="is no regular file"):
        checkpoint_files._check_file_size(tmp_path / PAYLOAD, 0)
