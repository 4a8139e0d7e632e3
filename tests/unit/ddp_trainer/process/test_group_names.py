"""A group that could not be made leaves the next one its name, which the other ranks expect."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from ddp_trainer.process.group_names import restart_group_names


def test_a_group_that_failed_while_it_was_made_is_not_counted() -> None:
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError):
        dist.init_process_group(
            "gloo", store=dist.HashStore(), rank=0, world_size=2, timeout=timedelta(milliseconds=300)
        )
    assert dist.distributed_c10d._world.group_count == 1
    restart_group_names()
    assert dist.distributed_c10d._world.group_count == 0
