"""Plans by which a model is cut into slices and stages: what fits, and what is refused in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from ddp_trainer.layout import LayoutRange
from ddp_trainer.train.config import Config
from ddp_trainer.train.errors import BadConfig, BadTask
from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.options import PipelineSchedule, PrecisionName
from ddp_trainer.train.strategies.pipeline_schedule import KINDS, demand_fit
from ddp_trainer.train.tensor_plan import demand_no_dropout, find_plan
from tests.unit.ddp_trainer.train.train_builders import Lines


def a_gpt(**options: Any) -> Gpt:
    return Gpt(**{"vocabulary": 8, "window": 4, "layers": 5, "heads": 4, "width": 8, **options})


class Planned(Lines):
    """A task with a plan of its own."""

    def __init__(self, plan: Mapping[str, object]) -> None:
        super().__init__()
        self.tp_plan = plan


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stages_together_are_the_model(count: int) -> None:
    model = a_gpt()
    stages = [model.pipeline_stage(index, count) for index in range(count)]
    tokens = torch.arange(8).view(2, 4)
    stream = tokens
    for stage in stages:
        stream = stage(stream)
    assert torch.equal(stream, model(tokens))
    assert set().union(*(stage.state_dict() for stage in stages)) == set(model.state_dict())


def test_layers_are_balanced() -> None:
    stages = [a_gpt().pipeline_stage(index, 3) for index in range(3)]
    assert [len(list(stage.blocks.children())) for stage in stages] == [2, 2, 1]


def test_the_output_layer_is_the_embedding_in_the_last_stage_too() -> None:
    first, middle, last = (a_gpt().pipeline_stage(index, 3).state_dict() for index in range(3))
    assert "tokens.weight" in first
    assert "tokens.weight" not in middle
    assert "tokens.weight" in last


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(BadConfig, match="layers are 5, which cannot fill 6 stages"):
        a_gpt().pipeline_stage(0, 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"heads": 4}, "number of heads is 4, which tp=3", id="heads"),
        pytest.param({"heads": 3, "width": 9, "vocabulary": 8}, "vocabulary is 8, which tp=3", id="vocabulary"),
    ],
)
def test_what_does_not_divide_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        a_gpt(**options).tp_plan(3)


def test_every_weight_of_the_gpt_is_in_its_plan() -> None:
    model = a_gpt()
    plan = find_plan(model, Lines(), 2)
    with_weights = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    without_numbers = {".".join("*" if part.isdecimal() else part for part in name.split(".")) for name in with_weights}
    assert without_numbers <= set(plan)


def test_a_plan_that_names_no_module_is_told_which_there_are() -> None:
    with pytest.raises(BadTask, match=r"tp_plan of the task 'lines' names 'blocks\.\*\.mlp\.up'") as caught:
        find_plan(a_gpt(), Planned({"blocks.*.mlp.up": "colwise"}), 2)
    assert "blocks.0.mlp" in (caught.value.hint or "")


def test_a_plan_in_words_becomes_one_of_torch() -> None:
    plan = find_plan(a_gpt(), Planned({"blocks.*.mlp.hidden": "colwise"}), 2)
    assert isinstance(plan["blocks.*.mlp.hidden"], ColwiseParallel)


def test_an_unknown_word_in_a_plan_is_refused() -> None:
    with pytest.raises(BadTask, match="'sideways' for 'blocks"):
        find_plan(a_gpt(), Planned({"blocks.*.mlp.hidden": "sideways"}), 2)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"neither the task 'lines' nor its model, a Linear, has a tp_plan"):
        find_plan(nn.Linear(1, 1), Lines(), 2)


def test_dropout_is_refused_where_ranks_compute_together() -> None:
    with pytest.raises(BadConfig, match=r"drops out 0.1 of dropout"):
        demand_no_dropout(a_gpt(dropout=0.1), "tp=2")
    demand_no_dropout(a_gpt(), "tp=2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"parallel": "shard=2,pp=2", "fsdp_prefetch": 1}, "stages gather their weights once", id="gather"),
        pytest.param({"parallel": "pp=2", "precision": PrecisionName.BF16}, "--precision does not go", id="precision"),
        pytest.param({"parallel": "tp=2", "activation_checkpointing": True}, "--activation-ch", id="checkpointing"),
    ],
)
def test_what_slices_and_stages_do_not_do_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        Config(**{**options, "parallel": LayoutRange.parse(options["parallel"])})


@pytest.mark.parametrize("name", PipelineSchedule)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_stage_has_one_rank(name: PipelineSchedule, ranks: int) -> None:
    kind = KINDS[name]
    stages = [stage for rank in range(ranks) for stage in kind.stages_of(rank, ranks)]
    assert sorted(stages) == list(range(ranks * kind.stages_per_rank))


def test_a_schedule_refuses_micro_batches_that_it_cannot_do() -> None:
    name = PipelineSchedule.ONE_F_ONE_B
    with pytest.raises(BadConfig, match="1f1b needs at least 4 micro-batches for 4 stages, and a step has 3"):
        demand_fit(name, 3, 4)
    name = PipelineSchedule.INTERLEAVED
    with pytest.raises(BadConfig, match="equal rounds over 2 ranks, and a step has 5"):
        demand_fit(name, 5, 2)
