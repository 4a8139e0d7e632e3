"""The argument of DDP that torch 2.13 renamed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddp_trainer.train.parallel.strategy import buffer_argument


def of_torch_2_12(self: object, module: object, broadcast_buffers: bool = True) -> None: ...


def of_torch_2_13(self: object, module: object, forward_sync_buffers: bool | None = None) -> None: ...


@pytest.mark.parametrize(
    ("constructor", "name"), [(of_torch_2_12, "broadcast_buffers"), (of_torch_2_13, "forward_sync_buffers")]
)
def test_buffers_are_left_to_the_step_in_the_words_of_each_torch(constructor: Callable[..., None], name: str) -> None:
    assert buffer_argument(constructor) == name
