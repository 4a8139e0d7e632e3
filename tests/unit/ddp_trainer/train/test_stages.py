"""Stages of a pipeline: whose weights they may have, and what passes between them."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.layout import Layout
from ddp_trainer.train.errors import BadTask
from ddp_trainer.train.group import Group
from ddp_trainer.train.mesh import Mesh
from ddp_trainer.train.options import PipelineSchedule
from ddp_trainer.train.stage_stream import BetweenStreams, Stream
from ddp_trainer.train.stages import Stages, demand_shared
from ddp_trainer.train.strategies.pipeline_schedule import KINDS
from tests.unit.ddp_trainer.train.train_builders import Lines


class Lower(nn.Module):
    """The first layer of a model, taken as it is or copied."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.lower = layer


def stages_of(*modules: nn.Module) -> Stages:
    layout = Layout(pp=2)
    mesh = Mesh(layout, layout.place(0), cast("DeviceMesh", None))
    return Stages(modules, KINDS[PipelineSchedule.GPIPE], mesh, Group.alone(), {})


def test_stages_that_copy_a_layer_are_refused() -> None:
    model = Lower(nn.Linear(2, 2))
    demand_shared(model, stages_of(Lower(model.lower), nn.Identity()), Lines())
    with pytest.raises(BadTask, match=r"Stage 0 of the task 'lines' keeps the weight 'lower.weight' in a module of"):
        demand_shared(model, stages_of(Lower(nn.Linear(2, 2)), nn.Identity()), Lines())


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
    between = BetweenStreams(layer, Stream.like(given), Stream.like(layer(given)))
    assert torch.equal(between(given), layer(given))
