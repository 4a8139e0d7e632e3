"""Archives are torch's own format, whatever they hold; snapshots keep what was."""

from __future__ import annotations

import io
import threading
import zipfile
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.train.checkpoint.snapshot import Snapshot, state_bytes
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive, pack
from ddp_trainer.train.utils.host_memory import copy_all


def written(archive: Archive) -> bytes:
    buffer = io.BytesIO()
    archive.write_to(buffer)
    return buffer.getvalue()


def loaded(archive: Archive) -> dict[str, Tensor]:
    state = torch.load(io.BytesIO(written(archive)), weights_only=True)
    assert isinstance(state, dict)
    return state


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
]
DTYPES += [torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]
DTYPES += [torch.float8_e4m3fn, torch.float8_e5m2]


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
        assert opened.namelist() == [
            f"archive/{name}" for name in ("data.pkl", "byteorder", "data/0", "data/1", "version")
        ]
    assert content.index(torch.ones(3).numpy().tobytes()) % 64 == 0
    assert written(archive) == content


def test_a_file_can_be_mapped_into_memory(tmp_path: object) -> None:
    file = f"{tmp_path}/state.pt"
    with open(file, "wb") as stream:  # noqa: PTH123 - a plain stream will do
        pack({"weights": torch.arange(5.0)}).write_to(stream)
    assert torch.load(file, weights_only=True, mmap=True)["weights"].tolist() == [0, 1, 2, 3, 4]


def test_a_snapshot_keeps_what_was_while_the_originals_change() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    snapshot = Snapshot(torch.device("cpu"))
    snapshot.reserve(state_bytes(model, 10))
    capacity = snapshot.capacity_bytes
    taken = snapshot.take(pack({"model": model.state_dict()}))
    nn.init.zeros_(model.weight)
    assert torch.equal(loaded(taken)["model"]["weight"], before)  # type: ignore[call-overload]
    assert snapshot.capacity_bytes == capacity


def test_an_archive_is_written_once_its_content_is_there() -> None:
    weights = torch.zeros(3)
    archive = replace(pack({"weights": weights}), ready=lambda: weights.fill_(1.0))
    assert loaded(archive)["weights"].tolist() == [1.0] * 3


def test_a_state_larger_than_was_thought_still_fits() -> None:
    snapshot = Snapshot(torch.device("cpu"))
    snapshot.reserve(4)
    taken = snapshot.take(pack({"weights": torch.arange(100.0)}))
    assert loaded(taken)["weights"].tolist() == list(range(100))


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


def test_where_no_more_threads_can_be_had_a_copy_is_whole_too() -> None:
    source = torch.arange((40 << 20) + 7, dtype=torch.int64).to(torch.uint8)
    target = torch.zeros_like(source)
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        copy_all([(target, source)], threads=3)
    finally:
        threading.stack_size(before)
    assert torch.equal(target, source)
