"""The files of a checkpoint: archives that torch reads, pieces of several ranks, and safetensors."""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory, CorruptCheckpoint, manifest_if_complete
from ddp_trainer.train.checkpoint.checkpoint_files import read as read_checkpoint
from ddp_trainer.train.checkpoint.manifest import MANIFEST, Manifest
from ddp_trainer.train.checkpoint.safetensors_files import INDEX, is_safetensors, read
from ddp_trainer.train.checkpoint.sharded_writer import ShardedWriter, await_pieces, write_pieces
from ddp_trainer.train.checkpoint.snapshot import Snapshot, state_bytes
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive, pack
from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.host_memory import copy_all
from tests.support.train_builders import ALONE, a_directory, a_manifest, sealed, write


def written(archive: Archive) -> bytes:
    buffer = io.BytesIO()
    archive.write_to(buffer)
    return buffer.getvalue()


def loaded(archive: Archive) -> dict[str, Any]:
    return cast("dict[str, Any]", torch.load(io.BytesIO(written(archive)), weights_only=True))


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.bool, torch.complex64, torch.complex128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_loads_every_kind_of_number(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    (back,) = loaded(pack({"tensor": tensor})).values()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_views_empty_tensors_and_scalars_come_back_as_they_were() -> None:
    matrix = torch.arange(12.0).view(3, 4)
    state = {"turned": matrix.t(), "part": matrix[1:, 2:], "empty": torch.empty(0, 3), "scalar": torch.tensor(7)}
    archive = pack(state)
    assert len(archive.storages) == 3
    back = loaded(archive)
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor)
        assert back[name].stride() == tensor.stride()
    assert back["turned"].untyped_storage().data_ptr() == back["part"].untyped_storage().data_ptr()


def test_an_archive_is_a_sound_zip_file_whose_data_are_aligned() -> None:
    archive = pack({"one": torch.ones(3), "long name of a tensor": torch.zeros(1000)})
    content = written(archive)
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        assert opened.testzip() is None
        names = [name.removeprefix("archive/") for name in opened.namelist()]
    assert names == ["data.pkl", "byteorder", "data/0", "data/1", "version"]
    assert content.index(torch.ones(3).numpy().tobytes()) % 64 == 0
    assert written(archive) == content


def test_a_snapshot_keeps_what_was_while_the_originals_change() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    snapshot = Snapshot(torch.device("cpu"))
    snapshot.reserve(state_bytes(model, 10))
    capacity = snapshot.capacity_bytes
    taken = snapshot.take(pack({"model": model.state_dict()}))
    nn.init.zeros_(model.weight)
    assert torch.equal(loaded(taken)["model"]["weight"], before)
    assert snapshot.capacity_bytes == capacity


def test_an_archive_is_written_once_its_content_is_there() -> None:
    weights = torch.zeros(3)
    archive = replace(pack({"weights": weights}), ready=lambda: weights.fill_(1.0))
    assert loaded(archive)["weights"].tolist() == [1.0] * 3


def test_memory_is_reserved_for_a_model_with_its_adam() -> None:
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 5))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model(torch.ones(2, 30)).sum())
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": torch.zeros(1000)}
    assert pack(state).storage_bytes <= state_bytes(model, 8000)


def test_a_copy_in_pieces_by_several_threads_is_whole() -> None:
    sizes = (3, 0, (40 << 20) + 7, 16 << 20)
    sources = [torch.arange(size, dtype=torch.int64).to(torch.uint8) for size in sizes]
    targets = [torch.full((size + 1,), 77, dtype=torch.uint8) for size in sizes]
    copy_all([(target[:-1], source) for target, source in zip(targets, sources, strict=True)], threads=3)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target[:-1], source)
        assert target[-1] == 77


def test_a_copy_without_more_threads_is_whole_too() -> None:
    source = torch.arange((40 << 20) + 7, dtype=torch.int64).to(torch.uint8)
    target = torch.zeros_like(source)
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        copy_all([(target, source)], threads=3)
    finally:
        threading.stack_size(before)
    assert torch.equal(target, source)


STEP = 2
NAME = f"step-{STEP:08d}"


def a_part() -> Archive:
    return pack({"tensors": {}, "values": {}, "numbers": torch.arange(100.0)})


def publish(directory: CheckpointDirectory, timeout_seconds: float = 5.0) -> Manifest:
    """Write the checkpoint as rank 0 of two ranks."""
    return directory.write(a_manifest(STEP), a_part(), partial(await_pieces, [1], timeout_seconds, ALONE))


def published(directory: CheckpointDirectory) -> Manifest:
    """Write the checkpoint as two ranks, rank 1 first."""
    write_pieces(directory.prepare(STEP), 1, a_manifest(STEP), a_part())
    return publish(directory)


def test_what_two_ranks_wrote_is_published_as_one_with_both_digests(tmp_path: Path) -> None:
    manifest = published(a_directory(tmp_path))
    assert sorted(file.name for file in (tmp_path / NAME).iterdir()) == [MANIFEST, "pieces-00001.pt", "state.pt"]
    assert manifest_if_complete(tmp_path / NAME) == manifest
    assert read_checkpoint(tmp_path / NAME).directory == tmp_path / NAME
    assert manifest.total_bytes == sum(file.stat().st_size for file in (tmp_path / NAME).glob("*.pt"))


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
    with pytest.raises(MemoryError):
        write_pieces(directory.prepare(STEP), 1, a_manifest(STEP), replace(a_part(), ready=fail))
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


def test_a_piece_that_is_missing_makes_a_checkpoint_torn(tmp_path: Path) -> None:
    published(a_directory(tmp_path))
    (tmp_path / NAME / "pieces-00001.pt").unlink()
    assert manifest_if_complete(tmp_path / NAME) is None
    with pytest.raises(CorruptCheckpoint, match=r"pieces-00001\.pt is missing"):
        read_checkpoint(tmp_path / NAME)


@pytest.mark.parametrize("name", ["../elsewhere.pt", "/etc/passwd", ".hidden"])
def test_a_manifest_names_no_files_outside_of_its_directory(name: str, tmp_path: Path) -> None:
    raw = json.loads(published(a_directory(tmp_path)).to_json())
    raw["pieces"][0]["file"] = name
    with pytest.raises(ValueError, match="does not match"):
        Manifest.from_json(sealed(raw))


save_file = pytest.importorskip("safetensors.torch").save_file

KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_type_are_read_as_they_were_written(kind: torch.dtype, tmp_path: Path) -> None:
    written = {"b": torch.tensor(True), "a": torch.arange(6).view(2, 3).to(kind), "none": torch.empty(0, 4)}
    save_file(written, tmp_path / "x.safetensors", metadata={"format": "pt"})
    torch.testing.assert_close(dict(read(tmp_path / "x.safetensors")), written, rtol=0, atol=0)


def test_numbers_that_lie_at_odd_places_are_read_too(tmp_path: Path) -> None:
    byte = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps({"a": byte, "b": {"dtype": "I32", "shape": [], "data_offsets": [1, 5]}}).encode()
    content = bytes([9]) + (7).to_bytes(4, "little")
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    assert {name: tensor.item() for name, tensor in read(tmp_path / "x.safetensors").items()} == {"a": 9, "b": 7}


@pytest.mark.parametrize("named", ["index", "directory"])
def test_several_files_are_one_checkpoint(named: str, tmp_path: Path) -> None:
    parts = {"1.safetensors": {"a": torch.ones(2)}, "2.safetensors": {"b": torch.zeros(1), "c": torch.ones(1)}}
    for file, weights in parts.items():
        save_file(weights, tmp_path / file)
    index = tmp_path / f"model{INDEX}"
    places = {name: file for file, weights in parts.items() for name in weights}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    given = index if named == "index" else tmp_path
    assert is_safetensors(given)
    assert {name: tensor.tolist() for name, tensor in read(given).items()} == {"a": [1, 1], "b": [0], "c": [1]}


def test_of_a_file_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    """The kernel counts the resident pages of the file."""
    save_file({name: torch.ones(1 << 21) for name in "abcd"}, tmp_path / "x.safetensors")
    found = read(tmp_path / "x.safetensors")
    assert found["c"].sum() == 1 << 21
    maps = Path("/proc/self/smaps").read_text()
    resident = re.search(rf"{re.escape(str(tmp_path))}.*?Rss: +(\d+) kB", maps, re.DOTALL)
    assert 8 << 10 <= int(resident.group(1)) < 12 << 10


DAMAGED = r"x\.safetensors, which is damaged: "


def of_header(file: Path, header: bytes) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), f"{DAMAGED}a lies at 0 to 8 of 7 bytes"),
        (lambda file: file.write_bytes(b"abc"), "which is damaged: its 3 bytes end before its header does"),
        (lambda file: of_header(file, b"[]"), "which is damaged: its header is none of safetensors"),
        (lambda file: of_header(file, b"[" * 100_000), "which is damaged: its header is none of safetensors"),
        *(
            (lambda file, entry=entry: of_header(file, json.dumps({"a": entry}).encode()), "x.*, which is damaged: ")
            for entry in (
                {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": [-1, 0], "data_offsets": [0, 0]},
                {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]},
                {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
                7,
            )
        ),
        (lambda file: file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F31"')), f"{DAMAGED}a has .* type 'F31'"),
        (Path.unlink, "which cannot be read: No such file"),
    ],
)
def test_a_damaged_file_is_refused(harm: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    harm(tmp_path / "x.safetensors")
    with pytest.raises(BadConfig, match=sentence):
        read(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ('{"weight_map": {"b": "1.safetensors"}}', r"lists b in 1\.safetensors, but 1\.safetensors does not contain"),
        ('{"weight_map": {"a": "2.safetensors"}}', r"2\.safetensors, which cannot be read: No such file"),
        ('{"weight_map": {"a": "../1.safetensors"}}', r"which names the file '\.\./1\.safetensors'"),
        ('{"weight_map": ["a"]}', "which is not a safetensors index"),
        ('{"weight_map": {"a": 7}}', "which is not a safetensors index"),
        ("[" * 100_000, "which is not a safetensors index"),
    ],
)
def test_an_index_that_is_none_is_refused(index: str, sentence: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    (tmp_path / f"model{INDEX}").write_text(index)
    with pytest.raises(BadConfig, match=sentence):
        read(tmp_path / f"model{INDEX}")


def test_a_directory_without_weights_or_with_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="a directory without weights in safetensors"):
        read(tmp_path)
    for name in ("1", "2"):
        save_file({"a": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(BadConfig, match=r"has 2 files of the name \*\.safetensors\. Name one of them"):
        read(tmp_path)
