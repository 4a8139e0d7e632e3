"""Stages of a pipeline: whose weights they may have, and what passes between them."""

from __future__ import annotations

from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.common.trainer_options import PipelineSchedule
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import ShardedState
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.parallel.pp.pipeline_split import KINDS, Stages, check_pipeline_model, check_shared_weights
from ddp_trainer.train.parallel.pp.stage_transfer import BetweenStreams, TensorSpec
from ddp_trainer.train.utils.errors import BadConfig, BadTask
from tests.support.train_builders import Lines


class Lower(nn.Module):
    """The first layer of a model, taken as it is or copied."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.lower = layer


def stages_of(*modules: nn.Module) -> Stages:
    layout = Layout(pp=2)
    mesh = Mesh(layout, layout.place(0), cast("DeviceMesh", None), {})
    return Stages(modules, KINDS[PipelineSchedule.GPIPE], mesh, Group.single_rank(), {})


def test_stages_that_copy_a_layer_are_refused() -> None:
    model = Lower(nn.Linear(2, 2))
    check_shared_weights(model, stages_of(Lower(model.lower), nn.Identity()), Lines())
    with pytest.raises(BadTask, match=r"Stage 0 of the task 'lines' has the weight 'lower.weight' in another module"):
        check_shared_weights(model, stages_of(Lower(nn.Linear(2, 2)), nn.Identity()), Lines())


def test_a_weight_of_two_names_or_a_buffer_cannot_be_cut_into_stages() -> None:
    tied = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    check_pipeline_model(tied, 2)
    tied[1].weight = tied[0].weight
    with pytest.raises(BadConfig, match=r"pp=2, .* a Sequential, has one weight under two names, '0.weight' and '1.w"):
        check_pipeline_model(tied, 2)
    with pytest.raises(BadConfig, match=r"a BatchNorm1d, has buffers, which stages"):
        check_pipeline_model(nn.BatchNorm1d(2), 2)


def test_stages_are_asked_once_what_they_give_to_inputs_of_one_form() -> None:
    first = nn.Linear(2, 3)
    stages = stages_of(first, nn.Linear(3, 4))
    streams = stages.streams(torch.zeros(5, 2))
    assert [tuple(stream.here.shape) for stream in streams] == [(5, 2), (5, 3), (5, 4)]
    assert all(stream.here.is_meta for stream in streams)
    assert stages.streams(torch.ones(5, 2)) is streams
    assert stages.streams(torch.zeros(6, 2))[-1].here.shape == (6, 4)


def test_a_stage_between_whole_streams_is_itself() -> None:
    layer, given = nn.Linear(2, 3), torch.ones(4, 2)
    between = BetweenStreams(layer, TensorSpec.like(given), TensorSpec.like(layer(given)))
    assert torch.equal(between(given), layer(given))


def test_what_a_stage_adds_to_the_model_is_evaluated_with_it() -> None:
    model = Lower(nn.Linear(2, 2))
    stages = stages_of(nn.Sequential(model.lower, nn.Dropout()), nn.Dropout())
    train = stages.train_with(model)
    train(False)
    assert not any(module.training for module in stages.modules[0].modules())
    assert stages.modules[1].training, "it is on another rank"
    assert train(True) is model
    assert all(module.training for module in stages.modules[0].modules())


@pytest.mark.parametrize("lacks", [False, True], ids=["the only stage", "with a stage elsewhere"])
def test_the_kernel_of_an_optimizer_is_chosen_by_weights_that_are_here(lacks: bool) -> None:
    """Those of other stages have no pieces, which no kernel would take beside pieces; they do not move."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        devices = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, device="meta")) if lacks else nn.Linear(2, 3)
        model.load_state_dict({name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()})
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if not weight.is_meta:
                    setattr(module, name, nn.Parameter(distribute_tensor(weight.detach(), devices, [Shard(0)])))
        here = [weight for weight in model.parameters() if not weight.is_meta]
        layout = Layout(shard=1, pp=2)
        sharded_state = ShardedState(Mesh(layout, layout.place(0), devices, {"shard": "shard"}), Group.single_rank())
        config = Config(warmup_steps=0, learning_rate=0.5, weight_decay=0.0)
        made = OptimizerWrapper.build(Lines(), model, config, 10, spread=sharded_state)
        for weight in here:
            weight.grad = torch.ones_like(weight)
        assert made.check_grads() == 0
        made.step(0)
        assert made.optimizer.param_groups[0]["fused"] is True
        assert all(weight.full_tensor().allclose(torch.tensor(0.5)) for weight in here if isinstance(weight, DTensor))
        assert len(made.optimizer.state) == len(here) == 2
    finally:
        dist.destroy_process_group()
