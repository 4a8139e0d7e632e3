"""Ranks that have outlived other groups meet ranks that have just started."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import PeerLost
from tests.support.ports import free_port

CPU = torch.device("cpu")
PEER = """
import sys
import torch
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.config.option_values import BackendName

port, generation = sys.argv[1:]
place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DDP_GENERATION": generation}
group = Group.join(Environment.from_environ(place), torch.device("cpu"), 60.0, BackendName.GLOO)
torch.distributed.barrier()
group.close()
"""


def test_a_rank_whose_last_group_was_never_completed_meets_one_that_has_just_started() -> None:
    here = replace(Environment.from_environ({}), rank=0, world_size=2, master_address="127.0.0.1")
    for generation in (1, 2):
        with pytest.raises(PeerLost):
            Group.join(replace(here, generation=generation, master_port=free_port()), CPU, 0.2, BackendName.GLOO)
        assert not dist.is_initialized()
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", PEER, str(port), "3"]) as peer:
        group = Group.join(replace(here, generation=3, master_port=port), CPU, 60.0, BackendName.GLOO)
        dist.barrier()
        group.close()
        assert peer.wait() == 0
