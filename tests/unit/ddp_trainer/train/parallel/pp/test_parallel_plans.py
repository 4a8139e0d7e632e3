"""Plans of models for slices and stages, and how a model is cut into stages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel

from ddp_trainer.common.parallel_dims import Layout, LayoutRange
from ddp_trainer.common.trainer_options import PipelineSchedule, PrecisionName
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Recompute
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.run_context import check_model_devices
from ddp_trainer.train.mesh.device_mesh import Mesh, PerRankRng, shared_rng
from ddp_trainer.train.parallel.pp import pipeline_split
from ddp_trainer.train.parallel.pp.pipeline_split import KINDS, Stages, check_micro_batches, stages_of
from ddp_trainer.train.parallel.pp.stage_transfer import BetweenStreams, StageComputation, TensorSpec
from ddp_trainer.train.parallel.tensor_parallel import find_plan
from ddp_trainer.train.utils.errors import BadConfig, BadTask
from ddp_workloads.gpt import Gpt
from tests.support.train_builders import Lines


def a_gpt(**options: Any) -> Gpt:
    return Gpt(**{"vocabulary": 8, "window": 4, "layers": 5, "heads": 4, "width": 8, **options})


def with_attribute(name: str, value: object) -> Lines:
    task = Lines()
    setattr(task, name, value)
    return task


def planned(plan: object) -> Lines:
    return with_attribute("tp_plan", plan)


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


def test_the_output_layer_is_the_embedding_in_the_last_stage_too() -> None:
    first, middle, last = (a_gpt().pipeline_stage(index, 3).state_dict() for index in range(3))
    assert "tokens.weight" in first
    assert "tokens.weight" not in middle
    assert "tokens.weight" in last


ALPHA = nn.Sequential(nn.Dropout(0.1), nn.AlphaDropout(0.1))
ONE_F_ONE_B, INTERLEAVED = PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED


@pytest.mark.parametrize(
    ("cut", "error", "message"),
    [
        (lambda: a_gpt().pipeline_stage(0, 6), BadConfig, "layers are 5, which cannot fill 6 stages"),
        (lambda: a_gpt(heads=4).tp_plan(3), BadConfig, "number of heads is 4, which tp=3"),
        (lambda: a_gpt(heads=3, width=9).tp_plan(3), BadConfig, "vocabulary is 8, which tp=3"),
        (lambda: find_plan(a_gpt(), planned({"blocks.*.mlp": "rowwise"}), 2), BadTask, r"cuts blocks\.0\.mlp by Roww"),
        (lambda: find_plan(a_gpt(), planned({"blocks.*": "sideways"}), 2), BadTask, r"'sideways' for 'blocks"),
        (lambda: find_plan(nn.Linear(1, 1), Lines(), 2), BadConfig, "'lines' nor its model, a Linear, has a tp_plan"),
        (lambda: shared_rng(ALPHA, "tp=2"), BadConfig, "has tp=2, and 1 of the model is AlphaDropout, which ranks can"),
        (lambda: check_micro_batches(ONE_F_ONE_B, 3, 4), BadConfig, "at least 4 micro-batches for 4 stages, and a ste"),
        (lambda: check_micro_batches(INTERLEAVED, 5, 2), BadConfig, "equal rounds over 2 ranks, and a step has 5"),
    ],
    ids=["layers", "heads", "vocabulary", "module", "word", "no plan", "dropout", "micro-batches", "rounds"],
)
def test_a_model_that_cannot_be_cut_is_refused(cut: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cut()


def test_every_weight_of_the_gpt_is_in_its_plan() -> None:
    model = a_gpt()
    plan = find_plan(model, Lines(), 2)
    with_weights = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    without_numbers = {".".join("*" if part.isdecimal() else part for part in name.split(".")) for name in with_weights}
    assert without_numbers <= set(plan)


def test_a_plan_that_names_no_module_is_told_which_there_are() -> None:
    with pytest.raises(BadTask, match=r"tp_plan of the task 'lines' names 'blocks\.\*\.mlp\.up'") as caught:
        find_plan(a_gpt(), planned({"blocks.*.mlp.up": "colwise"}), 2)
    assert "blocks.0.mlp" in (caught.value.hint or "")


def test_a_plan_in_words_becomes_one_of_torch() -> None:
    plan = find_plan(a_gpt(), planned({"blocks.*.mlp.hidden": "colwise"}), 2)
    assert isinstance(plan["blocks.*.mlp.hidden"], ColwiseParallel)


@pytest.mark.parametrize("spreads", [False, True])
def test_a_model_without_numbers_is_refused(spreads: bool) -> None:
    model = a_gpt()
    check_model_devices(model, "mine", spreads=spreads)
    model.norm.to_empty(device="meta")
    with pytest.raises(BadTask, match=r"task 'mine' has no numbers in norm\.weight, which is on torch's meta device"):
        check_model_devices(model, "mine", spreads=spreads)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        pytest.param(["norm"], "gives a value of type list, and no mapping. Give names of modules and", id="a list"),
        pytest.param(lambda _: None, "gives None, and no mapping.", id="a function that returns nothing"),
        pytest.param({3: "colwise"}, "has 3 where a name of a module should be.", id="a number for a name"),
        pytest.param({}, "is empty, and nothing would be cut.", id="nothing"),
        pytest.param(lambda _, tp: {}, "takes (_, tp), and is called with (model). Let it take", id="other arguments"),
    ],
)
def test_what_is_no_plan_is_refused(plan: object, message: str) -> None:
    with pytest.raises(BadTask) as caught:
        find_plan(a_gpt(), planned(plan), 2)
    assert str(caught.value).startswith(f"The tp_plan of the task 'lines' {message}")


def staged(stage: object) -> Lines:
    return with_attribute("pipeline_stage", stage)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        pytest.param(lambda *_: None, "returns None, and no module, for stage 0 of 2. Let it return a", id="nothing"),
        pytest.param(lambda model, *_: model, "returns the model itself, for stage 0 of 2.", id="the model"),
        pytest.param(lambda m, i: m, "takes (m, i), and is called with (model, index, count). Let it", id="no count"),
        pytest.param([], "is a value of type list, and no function. Let it be one that takes (model, i", id="a list"),
    ],
)
def test_what_is_no_stage_is_refused(stage: object, message: str) -> None:
    with pytest.raises(BadTask) as caught:
        stages_of(a_gpt(), staged(stage), 2)
    assert str(caught.value).startswith(f"The pipeline_stage of the task 'lines' {message}")


def test_stages_are_the_tasks_own_or_the_models() -> None:
    model = a_gpt()
    assert stages_of(model, staged(lambda model, index, count: model.blocks[index]), 2) == list(model.blocks)[:2]
    assert len(stages_of(model, Lines(), 5)) == 5
    with pytest.raises(BadConfig, match="nor its model, a Linear, has a pipeline_stage"):
        stages_of(nn.Linear(1, 1), Lines(), 2)


def test_a_module_that_is_to_draw_apart_does_and_the_common_stream_goes_on() -> None:
    drawn, after = [], []
    for rank in (0, 1, 0):
        mesh: Any = SimpleNamespace(get_local_rank=lambda rank=rank: rank)
        module = PerRankRng()._apply(nn.Dropout(0.5), mesh)
        torch.manual_seed(1)
        drawn.append([module(torch.ones(64)).tolist() for _ in range(2)])
        after.append(torch.rand(4).tolist())
        assert torch.equal(module.eval()(torch.ones(4)), torch.ones(4))
    assert drawn[0] == drawn[2]
    assert len({tuple(draw) for draws in drawn[:2] for draw in draws}) == 4
    assert after[0] == after[1]


def test_attention_draws_apart_where_it_drops_anything() -> None:
    assert isinstance(a_gpt(dropout=0.1).tp_plan(2)["blocks.*.attention.attend"], PerRankRng)
    assert "blocks.*.attention.attend" not in a_gpt().tp_plan(2)


SPLIT = {"parallel": "pp=2", "pipeline_schedule": PipelineSchedule.ZERO_BUBBLE}
AGAIN = {"activation_checkpointing": True}
CHEAP = AGAIN | {"parallel": "tp=2", "compile": True, "recompute": Recompute.CHEAP}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": "shard=2,pp=2", "fsdp_prefetch": 1}, "stages gather their weights once"),
        (SPLIT | AGAIN, "--activation-checkpointing does not go with --pipeline-schedule zero-"),
        (SPLIT | {"compile": True}, "--compile does not go with --pipeline-s"),
        (CHEAP, "--recompute cheap does not go with --compile where weights are cut by tp"),
    ],
)
def test_options_that_slices_and_stages_lack_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        Config(**{**options, "parallel": LayoutRange.parse(options["parallel"])})


def test_stages_draw_apart_and_again_the_same() -> None:
    stages = {number: nn.Dropout(0.5) for number in (0, 3)}
    computation = StageComputation(stages, PrecisionName.FP32, 0, torch.device("cpu"))
    ones = torch.ones(64)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        computation.begin()
        drawn.append([stages[number](ones) for number in (0, 3, 0)])
    assert all(torch.equal(one, other) for one, other in zip(drawn[0], drawn[1], strict=True))
    assert len({tuple(draw.tolist()) for draws in (drawn[0], drawn[2]) for draw in draws}) == 6


def test_stages_compute_in_few_bits_and_pass_on_32() -> None:
    seen: list[torch.dtype] = []
    inner = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    inner[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    StageComputation({0: inner}, PrecisionName.BF16, 0, torch.device("cpu"))
    passed = TensorSpec(torch.empty(1, 2, device="meta"))
    assert BetweenStreams(inner, passed, passed)(torch.ones(1, 2)).dtype == torch.float32
    with torch.no_grad():
        inner(torch.ones(1, 2))
    assert seen == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("name", PipelineSchedule)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_stage_has_one_rank(name: PipelineSchedule, ranks: int) -> None:
    kind = KINDS[name]
    stages = [stage for rank in range(ranks) for stage in kind.stages_of(rank, ranks)]
    assert sorted(stages) == list(range(ranks * kind.stages_per_rank))


class Lower(nn.Module):
    """A module whose only layer is ``lower``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.lower = layer


def split_stages(*modules: nn.Module) -> Stages:
    layout = Layout(pp=2)
    mesh = Mesh(layout, layout.place(0), cast("DeviceMesh", None), {})
    return Stages(modules, KINDS[PipelineSchedule.GPIPE], mesh, Group.single_rank(), {})


def test_stages_that_copy_a_layer_are_refused() -> None:
    model = Lower(nn.Linear(2, 2))
    pipeline_split.check_shared_weights(model, split_stages(Lower(model.lower), nn.Identity()), Lines())
    with pytest.raises(BadTask, match=r"Stage 0 of the task 'lines' has the weight 'lower.weight' in another module"):
        pipeline_split.check_shared_weights(model, split_stages(Lower(nn.Linear(2, 2)), nn.Identity()), Lines())


def test_a_weight_of_two_names_or_a_buffer_cannot_be_cut_into_stages() -> None:
    tied = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    pipeline_split.check_pipeline_model(tied, 2)
    tied[1].weight = tied[0].weight
    with pytest.raises(BadConfig, match=r"pp=2, .* a Sequential, has one weight under two names, '0.weight' and '1.w"):
        pipeline_split.check_pipeline_model(tied, 2)
    with pytest.raises(BadConfig, match=r"a BatchNorm1d, has buffers, which stages"):
        pipeline_split.check_pipeline_model(nn.BatchNorm1d(2), 2)


def test_stages_are_asked_once_what_they_give_to_inputs_of_one_form() -> None:
    first = nn.Linear(2, 3)
    stages = split_stages(first, nn.Linear(3, 4))
    streams = stages.streams(torch.zeros(5, 2))
    assert [tuple(stream.here.shape) for stream in streams] == [(5, 2), (5, 3), (5, 4)]
    assert all(stream.here.is_meta for stream in streams)
    assert stages.streams(torch.ones(5, 2)) is streams
    assert stages.streams(torch.zeros(6, 2))[-1].here.shape == (6, 4)


def test_what_a_stage_adds_to_the_model_is_evaluated_with_it() -> None:
    model = Lower(nn.Linear(2, 2))
    stages = split_stages(nn.Sequential(model.lower, nn.Dropout()), nn.Dropout())
    train = stages.train_with(model)
    train(False)
    assert not any(module.training for module in stages.modules[0].modules())
    assert stages.modules[1].training, "it is on another rank"
    assert train(True) is model
    assert all(module.training for module in stages.modules[0].modules())
