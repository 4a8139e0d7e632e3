"""A plan of what a job of the reference trainer says."""

from __future__ import annotations

import inspect

import pytest

from ddp_trainer.common.enums import OptimizerName
from ddp_trainer.train.cli import parse
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.tasks.text import VOCABULARY, WINDOW
from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.job_args import parse_job_args, parse_recompute
from kubectl_ddp.plan.recomputation import ALL, NOTHING, Recomputation
from kubectl_ddp.plan.work import Precision


def test_defaults_are_the_trainers_own() -> None:
    shape, work = parse_job_args(["train", "--task", "text"])
    of_gpt = {name: each.default for name, each in inspect.signature(Gpt).parameters.items()}
    assert (shape.layers, shape.heads, shape.hidden) == (of_gpt["layers"], of_gpt["heads"], of_gpt["width"])
    assert (shape.vocabulary, shape.window, work.sequence) == (VOCABULARY, WINDOW, WINDOW)
    config = Config()
    assert (work.global_batch, str(work.precision), str(work.optimizer)) == (
        config.global_batch,
        str(config.precision),
        str(config.optimizer),
    )
    assert (work.micro_batch, work.recomputation) == (config.micro_batch, NOTHING)
    assert not config.activation_checkpointing
    assert parse_recompute(["--activation-checkpointing"]) == Recomputation.parse(str(config.recompute))


def test_a_shape_has_as_many_weights_as_the_model_and_counts_its_operations_alike() -> None:
    shape, _ = parse_job_args(["train", "--task=text", "--model", "gpt:layers=3,width=64,heads=2", "--window=32"])
    model = Gpt(vocabulary=VOCABULARY, window=32, layers=3, width=64, heads=2)
    assert shape.parameters == model.parameter_count()
    assert shape.flops_per_token(32) * 32 == model.flops_per_sample()
    assert shape.recompute_flops_per_token(32) * 32 == model.recomputed_flops_per_sample()


def test_words_of_the_job_are_read() -> None:
    words = "train --task text --global-batch 32 --micro-batch=2 --precision bf16 --optimizer sgd"
    _, work = parse_job_args([*words.split(), "--activation-checkpointing"])
    assert (work.global_batch, work.micro_batch, work.recomputation) == (32, 2, ALL)
    assert (work.precision, work.optimizer) == (Precision.BF16, OptimizerName.SGD)


@pytest.mark.parametrize("what", ["all", "cheap", "2", "7"])
def test_what_is_computed_again_is_read_and_said_as_the_trainer_has_it(what: str) -> None:
    found = parse_recompute(["--activation-checkpointing", "--recompute", what])
    config = parse(["--task", "text", "--data", "/data", *found.flags])
    assert config.activation_checkpointing
    assert str(config.recompute) == found.flag_value == what


def test_nothing_is_computed_again_without_the_switch() -> None:
    assert parse_recompute(["train", "--recompute", "all"]) == NOTHING


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train", "does not train the task 'text'"),
        ("train --task text --model mlp", "--model is 'mlp'"),
        ("train --task text --window x", "--window of the job is 'x'"),
        (
            "train --task text --window 0",
            "--window of the job is '0', which is not a whole number from 1 to 1000000000",
        ),
        ("train --task text --window 9999999999", "--window of the job is '9999999999', which"),
        ("train --task text --micro-batch 0", "--micro-batch of the job is '0'"),
        ("train --task text --model gpt:layers=0", "layers in --model of the job is '0', which"),
        ("train --task text --model gpt:layers=99999999", "layers in --model of the job is '99999999', which"),
        ("train --task text --model gpt:width=65", "--model of the job is 'gpt:width=65', whose width 65 cannot"),
        ("train --task text --global-batch", "--global-batch of the job is ''"),
        ("train --task text --activation-checkpointing --recompute 0", "--recompute is '0'"),
        ("train --task text --recompute 2", "--recompute is 2, and nothing is computed again without --activation"),
    ],
)
def test_what_no_plan_can_be_made_of_is_said(words: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_job_args(words.split())
