"""The argument of DDP that torch 2.13 renamed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import pytest
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.train.parallel import ddp


def of_torch_2_12(self: object, module: object, broadcast_buffers: bool = True) -> None: ...


def of_torch_2_13(self: object, module: object, forward_sync_buffers: bool | None = None) -> None: ...


@pytest.fixture
def reloaded() -> Iterator[None]:
    yield
    importlib.reload(ddp)


@pytest.mark.usefixtures("reloaded")
@pytest.mark.parametrize(
    ("constructor", "name"), [(of_torch_2_12, "broadcast_buffers"), (of_torch_2_13, "forward_sync_buffers")]
)
def test_buffers_are_left_to_the_step_in_the_words_of_each_torch(
    monkeypatch: pytest.MonkeyPatch, constructor: Callable[..., None], name: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(DistributedDataParallel, "__init__", constructor)
        importlib.reload(ddp)
    assert {name: False} == ddp._NO_BUFFER_SYNC
