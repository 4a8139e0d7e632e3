"""Weights in safetensors as ``--init-from`` finds them: in one file or in several, and damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ddp_trainer.train.checkpoint.safetensors_files import INDEX, is_safetensors, read
from ddp_trainer.train.utils.errors import BadConfig

save_file = pytest.importorskip("safetensors.torch").save_file

KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)


def save_parts(directory: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """Write files and their index, as other libraries do."""
    for file, weights in parts.items():
        save_file(dict(weights), directory / file)
    places = {name: file for file, weights in parts.items() for name in weights}
    index = directory / f"model{INDEX}"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_type_are_read_as_they_were_written(kind: torch.dtype, tmp_path: Path) -> None:
    written = {"b": torch.tensor(True), "a": torch.arange(6).view(2, 3).to(kind), "none": torch.empty(0, 4)}
    save_file(written, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read(tmp_path / "x.safetensors")
    assert found.keys() == written.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in written.items()
    )


def test_numbers_that_lie_at_odd_places_are_read_too(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "I32", "shape": [], "data_offsets": [1, 5]},
    }
    text = json.dumps(header).encode()
    content = bytes([9]) + (7).to_bytes(4, "little")
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    assert {name: tensor.item() for name, tensor in read(tmp_path / "x.safetensors").items()} == {"a": 9, "b": 7}


@pytest.mark.parametrize("named", ["index", "directory"])
def test_several_files_are_one_checkpoint(named: str, tmp_path: Path) -> None:
    index = save_parts(
        tmp_path, {"1.safetensors": {"a": torch.ones(2)}, "2.safetensors": {"b": torch.zeros(1), "c": torch.ones(1)}}
    )
    given = index if named == "index" else tmp_path
    assert is_safetensors(given)
    assert {name: tensor.tolist() for name, tensor in read(given).items()} == {"a": [1, 1], "b": [0], "c": [1]}


def test_of_a_file_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    """As the kernel counts the pages of it that this process has."""
    save_file({name: torch.ones(1 << 21) for name in "abcd"}, tmp_path / "x.safetensors")
    found = read(tmp_path / "x.safetensors")
    assert found["c"].sum() == 1 << 21
    maps = Path("/proc/self/smaps").read_text()
    resident = re.search(rf"{re.escape(str(tmp_path))}.*?Rss: +(\d+) kB", maps, re.DOTALL)
    assert resident is not None
    assert 8 << 10 <= int(resident.group(1)) < 12 << 10


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def without_header(file: Path) -> None:
    file.write_bytes((2).to_bytes(8, "little") + b"[]")


def of_header(file: Path, header: bytes) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


def of_unknown_type(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F31"'))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (cut_short, r"x\.safetensors, which is damaged: a lies at 0 to 8 of 7 bytes, and has the shape \(2,\)\."),
        (lambda file: file.write_bytes(b"abc"), "which is damaged: its 3 bytes end before its header does"),
        (lambda file: file.write_bytes(b"a" * 20), "which is damaged: its 20 bytes end before its header does"),
        (without_header, "which is damaged: its header is none of safetensors"),
        (lambda file: of_header(file, b"[" * 100_000), "which is damaged: its header is none of safetensors"),
        *(
            (lambda file, entry=entry: of_header(file, json.dumps({"a": entry}).encode()), "x.*, which is damaged: ")
            for entry in (
                {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
                {"dtype": "F32", "shape": [-1, 0], "data_offsets": [0, 0]},
                {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]},
                {"dtype": "F32", "shape": [2], "data_offsets": [0]},
                {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
                7,
            )
        ),
        (of_unknown_type, "which is damaged: a has numbers of the type 'F31', which is not known"),
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
        (
            '{"weight_map": {"b": "1.safetensors"}}',
            r"lists b in 1\.safetensors, but 1\.safetensors does not contain it",
        ),
        ('{"weight_map": {"a": "2.safetensors"}}', r"2\.safetensors, which cannot be read: No such file"),
        ('{"weight_map": {"a": "../1.safetensors"}}', r"which names the file '\.\./1\.safetensors'"),
        ('{"weight_map": ["a"]}', "which is not a safetensors index"),
        ("a", "which is not a safetensors index"),
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
