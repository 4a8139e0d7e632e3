"""Checkpoints of a directory: written whole, kept, and skipped where they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ddp_trainer.train.checkpoint import manifest
from ddp_trainer.train.checkpoint.checkpoint_cli import main
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory, unpack
from ddp_trainer.train.checkpoint.manifest import FORMAT, MANIFEST, PAYLOAD, SHARDED, CheckpointFile, Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.utils.errors import CheckpointMismatch, StaleGeneration
from tests.support.train_builders import IDENTITY, a_directory, a_manifest, a_state, latest, sealed, write


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name != "CLAIM")


def test_an_empty_directory_has_no_checkpoint(tmp_path: Path) -> None:
    assert a_directory(tmp_path / "new").latest_checkpoint(pytest.fail) is None


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    directory = a_directory(tmp_path, keep=2)
    for step in (1, 2, 10, 9_999_999, 100_000_000):
        write(directory, step)
    assert names(tmp_path) == ["step-09999999", "step-100000000"]
    assert latest(directory).manifest.step == 100_000_000


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flipped(content: bytes, bit: int) -> bytes:
    at = bit % (8 * len(content))
    return content[: at // 8] + bytes([content[at // 8] ^ 1 << at % 8]) + content[at // 8 + 1 :]


def flip_a_bit(file: Path) -> None:
    file.write_bytes(flipped(file.read_bytes(), 4000))


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "payload missing": (Path.unlink, PAYLOAD, "state.pt is missing"),
    "manifest missing": (Path.unlink, MANIFEST, "manifest.json is missing"),
    "payload torn": (cut_short, PAYLOAD, "state.pt has "),
    "payload corrupt": (flip_a_bit, PAYLOAD, "does not have the digest"),
    "manifest torn": (cut_short, MANIFEST, "manifest.json is damaged"),
}


@pytest.mark.parametrize(("damage", "file", "reason"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named_and_skipped(damage: Callable[[Path], None], file: str, reason: str, tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    write(directory, 1)
    write(directory, 2)
    damage(tmp_path / "step-00000002" / file)
    messages: list[str] = []
    assert latest(directory, messages.append).manifest.step == 1
    (sentence,) = messages
    assert str(tmp_path / "step-00000002") in sentence
    assert reason in sentence


def test_damaged_ones_do_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    directory = a_directory(tmp_path, keep=2)
    for step in (1, 2, 3):
        write(directory, step)
    cut_short(tmp_path / "step-00000003" / PAYLOAD)
    write(directory, 4)
    assert names(tmp_path) == ["step-00000002", "step-00000004"]


def test_nobody_who_still_writes_for_a_group_that_is_over_writes_into_the_next_ones(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    assert directory.prepare(5) != directory.prepare(5)
    write(directory, 5)
    assert names(tmp_path) == ["step-00000005"]


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    write(directory, 5)
    directory.write(a_manifest(5), pack({"step": 5, "again": True}))
    assert names(tmp_path) == ["step-00000005"]
    assert unpack(latest(directory))["again"] is True


def test_a_crash_between_the_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    write(directory, 5)
    (tmp_path / "step-00000005").rename(tmp_path / "step-00000005.old")
    assert latest(directory).manifest.step == 5


def test_generations_that_begin_again_after_a_suspension_are_not_stale(tmp_path: Path) -> None:
    before = WriteLease(tmp_path, generation=7, fence=1_000, run_id="run", token="before")
    after = WriteLease(tmp_path, generation=1, fence=2_000, run_id="run", token="after")
    before.take()
    after.take()
    with pytest.raises(StaleGeneration, match="Generation 7 may no longer write"):
        before.check()
    with pytest.raises(StaleGeneration):
        before.take()


def test_a_new_run_may_claim_the_directory_of_an_old_one(tmp_path: Path) -> None:
    a_directory(tmp_path, generation=7)
    (tmp_path / "CLAIM").write_text((tmp_path / "CLAIM").read_text().replace('"run"', '"an earlier run"'))
    write(a_directory(tmp_path, generation=0, token="b"), 1)


class Code:
    """Not a tensor or a plain value."""


def test_a_payload_with_anything_but_tensors_and_values_is_not_loaded(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    directory.write(a_manifest(1), pack({"weights": torch.zeros(1), "code": Code()}))
    with pytest.raises(CheckpointMismatch, match="contains objects that"):
        unpack(latest(directory))


def test_the_best_is_kept_beside_the_newest(tmp_path: Path) -> None:
    directory = a_directory(tmp_path, keep=2, best="accuracy")
    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.9), (4, None), (5, 0.7), (6, float("nan"))):
        write(directory, step, metrics=None if accuracy is None else {"accuracy": accuracy})
    assert names(tmp_path) == ["step-00000002", "step-00000005", "step-00000006"]
    write(directory, 7, metrics={"accuracy": 0.95})
    write(directory, 8)
    write(directory, 9)
    assert names(tmp_path) == ["step-00000007", "step-00000008", "step-00000009"]


def test_a_checkpoint_of_a_later_version_is_not_skipped_for_an_older_one(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    write(directory, 1)
    later = {"format": FORMAT + 1, "step": 2, "hashes": {"state.pt": "..."}}
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / MANIFEST).write_text(sealed(later))
    refused = f"has format {FORMAT + 1}, and this version reads format {FORMAT}. Continue with"
    with pytest.raises(CheckpointMismatch, match=re.escape(refused)):
        manifest.check_same_run(latest(directory).manifest, IDENTITY, where="here", batch_slices=None)


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
    found = latest(directory, messages.append)
    assert found.manifest.step == unpack(found)["step"] == 1
    (sentence,) = messages
    assert str(damaged) in sentence
    assert len(sentence.splitlines()) == 1
    write(directory, 3)  # pruning reads the damaged one, too
    assert latest(directory).manifest.step == 3


FIELDS: dict[str, dict[str, Any]] = {
    "size infinite": {"size_bytes": float("inf")},
    "size absurd": {"size_bytes": 10**30},
    "step too large for ranks": {"step": 2**63},
    "a field of no version": {"steps": 2},
    "step of another checkpoint": {"step": 7},
    "written in no year": {"written_at": 1e300},
    "no identity": {"identity": None},
    "pieces a number": {"pieces": 1},
    "a piece with a NUL": {"pieces": [{"file": "a\0", "sha256": "", "size_bytes": 0}]},
    "a piece with half a character": {"pieces": [{"file": "\ud800", "sha256": "", "size_bytes": 0}]},
    "metrics a number": {"metrics": 3},
    "metrics of texts": {"metrics": {"accuracy": "high"}},
    "format infinite": {"format": float("inf")},
    "a later format of no year": {"format": FORMAT + 1, "written_at": "now"},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
def test_a_wrong_manifest_is_damaged_despite_its_digest(fields: dict[str, Any], tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    (newest / MANIFEST).write_text(sealed(json.loads((newest / MANIFEST).read_text()) | fields))
    demand_fallback(directory, newest)


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "no digest": lambda old: old.replace(b'"manifest_sha256"', b'"another"'),
    "a list": lambda _: b"[{}]",
    "nested": lambda _: b"[" * 200_000,
    "many digits": lambda _: b'{"format": ' + b"9" * 5000 + b"}",
    "not text": lambda _: b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_manifest_without_a_digest_or_json_is_damaged(content: Callable[[bytes], bytes], tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    (newest / MANIFEST).write_bytes(content((newest / MANIFEST).read_bytes()))
    demand_fallback(directory, newest)


def enlarge(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 43)


ENTRIES = {"pipe": os.mkfifo, "dir": os.mkdir, "loop": lambda file: file.symlink_to(file), "too large": enlarge}


@pytest.mark.parametrize("name", [MANIFEST, PAYLOAD])
@pytest.mark.parametrize("make", ENTRIES.values(), ids=ENTRIES.keys())
def test_what_cannot_be_read_as_a_file_is_damaged(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    directory, newest = two_checkpoints(tmp_path)
    (newest / name).unlink()
    make(newest / name)
    demand_fallback(directory, newest)


ANY_DAMAGE = st.one_of(
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


@given(damage=ANY_DAMAGE, name=st.sampled_from([MANIFEST, PAYLOAD, PIECES]))
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
    found = latest(directory, messages.append)
    if messages:
        assert (found.manifest.step, len(messages)) == (1, 1)
    else:
        assert found.manifest == intact
        assert name == MANIFEST or (newest / name).read_bytes() == old
    assert main(["verify", str(path)]) == (1 if messages else 0)
    shutil.rmtree(path)
