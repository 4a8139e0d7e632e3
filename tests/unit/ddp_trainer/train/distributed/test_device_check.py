"""Ranks on different kinds of devices are told where they meet, with their numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.device_selection import require_same_device
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture
def store() -> dist.TCPStore:  # type: ignore[name-defined] # documented, but not in __all__
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined] # as above


def test_ranks_on_one_kind_of_device_pass(store: dist.Store) -> None:  # type: ignore[name-defined] # as above
    for rank in (2, 0, 1):
        require_same_device(store, "a", rank, torch.device("cuda", rank), "nccl")
    require_same_device(store, "b", 0, CPU, "gloo")  # another generation has a first one of its own


def test_both_ranks_are_named_whoever_came_first(store: dist.Store) -> None:  # type: ignore[name-defined] # as above
    require_same_device(store, "a", 3, GPU, "nccl")
    with pytest.raises(BadConfig) as caught:
        require_same_device(store, "a", 0, CPU, "gloo")
    assert caught.value.message == (
        "Rank 0 computes on cpu with gloo, and rank 3 on cuda with nccl: ranks of one group need one kind of device "
        "and one backend."
    )
    assert caught.value.exit_code == 2
    with pytest.raises(BadConfig, match="Rank 1 computes on cuda with gloo, and rank 3 on cuda with nccl"):
        require_same_device(store, "a", 1, GPU, "gloo")


def test_a_rank_does_not_join_a_group_of_another_device(store: dist.TCPStore) -> None:  # type: ignore[name-defined] # as above
    here = replace(
        Environment.from_environ({}), rank=1, world_size=2, master_address="127.0.0.1", master_port=store.port
    )
    store.set(f"ddp/generation-{here.generation}/device", "0:cuda with nccl")
    with pytest.raises(BadConfig, match="Rank 1 computes on cpu with gloo, and rank 0 on cuda with nccl"):
        Group.join(here, CPU, 60.0, BackendName.GLOO)
    assert not dist.is_initialized()
