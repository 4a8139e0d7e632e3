"""Ranks start with the buffers of rank 0, whichever argument of DDP leaves later synchronization to the step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.ports import free_port

PROGRAM = """
import sys, warnings
from types import SimpleNamespace
from contextlib import nullcontext
import torch, torch.distributed as dist
from torch import nn
from ddp_trainer.train.parallel import strategy
warnings.simplefilter("ignore")
rank, port, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
strategy._BUFFER_ARGUMENT = name
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
model[1].running_mean.fill_(rank + 1.0)
has_agreed = sys.argv[4] == "agreed"
group = SimpleNamespace(device=torch.device("cpu"), convert_errors=nullcontext, has_agreed_state=has_agreed)
config = SimpleNamespace(
    activation_checkpointing=False,
    static_graph=False, bucket_mb=25, find_unused_parameters=False, gradient_as_bucket_view=False
)
def prepare(self, parts):
    self.model, self._group = model, group
strategy.Strategy.__init__ = prepare
strategy.Ddp(SimpleNamespace(config=config, module=lambda: model))
print(model[1].running_mean.tolist())
dist.destroy_process_group()
"""


def buffers_of_both(name: str, state: str) -> list[str]:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), port, name, state], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=120)[0].strip() for rank in ranks]


@pytest.mark.parametrize("name", ["forward_sync_buffers", "broadcast_buffers"])
def test_both_ranks_have_the_buffers_of_rank_0(name: str) -> None:
    assert buffers_of_both(name, "apart") == ["[1.0, 1.0]"] * 2


@pytest.mark.parametrize("name", ["forward_sync_buffers", "broadcast_buffers"])
def test_nothing_is_sent_again_where_all_ranks_have_the_same_state(name: str) -> None:
    assert buffers_of_both(name, "agreed") == ["[1.0, 1.0]", "[2.0, 2.0]"]
