"""A loop under ``elastic.run`` keeps its model over groups, so the model holds nothing of a group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddp_trainer import elastic
from ddp_trainer.train.utils.errors import BadConfig


class FSDPModule:
    """Mix-in of what ``fully_shard`` returns, by its name."""


class Sharded(FSDPModule, nn.Linear):
    """As ``fully_shard`` makes of a layer."""


@pytest.mark.parametrize("wrapper", [nn.parallel.DistributedDataParallel, Sharded], ids=["DDP", "FSDP2"])
def test_a_model_that_holds_state_of_a_group_is_refused_by_name(wrapper: type[nn.Module]) -> None:
    inner = wrapper.__new__(wrapper)
    nn.Module.__init__(inner)
    model = nn.Sequential(nn.Linear(1, 1), inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(BadConfig, match="whose state does not survive a change of the group") as caught,
        elastic.run(model, optimizer, torch.ones(8, 1), global_batch=8),
    ):
        raise AssertionError("it trains")
    assert "plain model" in str(caught.value)
