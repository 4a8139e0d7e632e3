"""Constraints of a layout: the plugin counts as the trainer does, and reports the trainer's errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.common.trainer_options import PipelineSchedule, count_batch_slices, part_samples
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import choose_batch_slices, shares
from ddp_trainer.train.parallel.pp.pipeline_split import check_micro_batches
from ddp_trainer.train.utils.errors import BadConfig
from ddp_workloads.gpt import Gpt
from ddp_workloads.text import VOCABULARY
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec import trainer_arguments
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 40))
def test_samples_of_a_part_are_those_that_the_trainer_gives_it(batch: int, batch_slices: int, parts: int) -> None:
    batch_slices = min(batch_slices, batch)
    parts = min(parts, batch_slices)
    counted = [part_samples(part, parts=parts, batch_slices=batch_slices, global_batch=batch) for part in range(parts)]
    assert counted == shares(batch, batch_slices, parts)
    assert count_batch_slices(None, max_ranks=parts, parts=parts, global_batch=batch) == choose_batch_slices(
        None, promised_ranks=parts, max_ranks=parts, world_size=parts, global_batch=batch
    )


def test_the_plugins_defaults_are_the_trainers() -> None:
    of_gpt = {name: parameter.default for name, parameter in inspect.signature(Gpt).parameters.items()}
    assert dict(trainer_arguments.SIZES) == {name: of_gpt[name] for name in trainer_arguments.SIZES}
    config = Config()
    assert config.global_batch == trainer_arguments.GLOBAL_BATCH
    assert config.pipeline_schedule == trainer_arguments.SCHEDULE
    assert trainer_arguments.VOCABULARY == VOCABULARY


INTERLEAVED = "--pipeline-schedule interleaved"
BATCHES = "--global-batch 8 --micro-batch 8"
ROUNDS = "--global-batch 5 --micro-batch 1 --pipeline-schedule zero-bubble"


def a_gpt(**options: int) -> Gpt:
    return Gpt(**{"vocabulary": VOCABULARY, "window": 4, "width": 12, **options})


@pytest.mark.parametrize(
    ("parallel", "words", "of_the_trainer"),
    [
        pytest.param("tp=2", "--model gpt:heads=3", lambda: a_gpt(heads=3).tp_plan(2), id="heads"),
        pytest.param("pp=2", "--model gpt:layers=1", lambda: a_gpt(layers=1).pipeline_stage(0, 2), id="layers"),
        pytest.param(
            "pp=2", f"{INTERLEAVED} --model=gpt:layers=3", lambda: a_gpt(layers=3).pipeline_stage(0, 4), id="4"
        ),
        pytest.param("pp=2", BATCHES, lambda: check_micro_batches(PipelineSchedule.ONE_F_ONE_B, 1, 2), id="batches"),
        pytest.param("pp=2", ROUNDS, lambda: check_micro_batches(PipelineSchedule.ZERO_BUBBLE, 5, 2), id="rounds"),
    ],
)
def test_the_plugin_refuses_in_the_words_of_the_trainer(
    parallel: str, words: str, of_the_trainer: Callable[[], object]
) -> None:
    with pytest.raises(BadConfig) as late:
        of_the_trainer()
    size = {"nnodes": NodeRange(1, 1), "nproc": 2, "parallel": LayoutRange.parse(parallel)}
    with pytest.raises(UsageError) as early:
        a_job(args=("train", "--task", "text", *words.split()), **size)
    assert (early.value.message, early.value.hint) == (late.value.message, late.value.hint)
    assert early.value.exit_code == late.value.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        "--task digits --micro-batch 64",
        "--task text --model mlp --micro-batch 64",
        "--task text --micro-batch 64 --pipeline-schedule gpipe",
        "--task text --micro-batch 64 --global-batch many",
        "--task text",
    ],
)
def test_what_is_unknown_or_fits_is_let_through(words: str) -> None:
    a_job(args=("train", *words.split()), nnodes=NodeRange(1, 1), nproc=2, parallel=LayoutRange.parse("pp=2"))
