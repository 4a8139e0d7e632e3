"""Refusals of ``--level exact`` and ``--level fast``, and the merged batches of ``fast``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.common.constants import Exit
from ddp_trainer.train import Config, run
from ddp_trainer.train.cli import main, parse
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.data.batch_reader import merge
from ddp_trainer.train.utils.errors import BadTask
from tests.support.train_builders import HERE, Lines


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--strategy", "local-sgd"], "with --strategy local-sgd: local-sgd steps by each rank's own gradients."),
        (["--strategy", "data-parallel"], "with --strategy data-parallel: it sums gradients in a different order."),
        (["--strategy", "manual"], "with --strategy manual: "),
        (["--compile"], "with --compile: a compiler chooses kernels by the shapes that a process has seen before."),
        (["--sync-batchnorm"], "with --sync-batchnorm: it normalizes by the samples that are computed together."),
        (["--broadcast-buffers"], "with --broadcast-buffers: rank 0 has other batch slices in another world."),
    ],
)
def test_exact_refuses_what_breaks_it(flags: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--level", "exact", *flags]) == Exit.USAGE
    stderr = capsys.readouterr().err
    assert why in stderr
    assert len(stderr.splitlines()) == 1
    parse(flags)


class SparseLines(Lines):
    """A task with sparse gradients."""

    def model(self) -> nn.Module:
        return nn.Embedding(10, 1, sparse=True)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model((batch[:, 0] * 10).long()).square().squeeze(1)  # type: ignore[no-any-return] # a Module's call


def test_exact_refuses_sparse_gradients_in_a_sentence() -> None:
    with pytest.raises(BadTask, match=r"--level exact cannot add up sparse gradients.*sparse=False"):
        run(Config(level=Level.EXACT, optimizer="sgd", epochs=1, global_batch=4), SparseLines(), env=HERE)  # type: ignore[arg-type] # as flags give it


class SpareLines(Lines):
    """A model with a weight that nothing uses."""

    def model(self) -> nn.Module:
        self.made = nn.Linear(1, 1)
        self.made.register_parameter("spare", nn.Parameter(torch.ones(3)))
        return self.made


@pytest.mark.parametrize("level", [Level.EXACT, Level.ORDERED])
def test_a_weight_that_no_slice_uses_is_left_alone_decay_included(level: Level) -> None:
    task = SpareLines()
    run(Config(level=level, epochs=1, global_batch=4, weight_decay=0.5, learning_rate=0.5), task, env=HERE)
    assert task.made.get_parameter("spare").tolist() == [1, 1, 1]


class CountedLines(Lines):
    """Records the number of samples of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        if model.training:
            self.passes.append(len(batch))
        return super().losses(model, batch)


def test_fast_computes_a_ranks_slices_at_once_and_without_random_draws_comes_to_the_same() -> None:
    tasks = {level: CountedLines() for level in (Level.ORDERED, Level.FAST)}
    losses = {}
    for level, task in tasks.items():
        config = Config(level=level, epochs=2, global_batch=4, batch_slices=2, warmup_steps=0)
        losses[level] = run(config, task, env=HERE).summary.loss
    assert tasks[Level.ORDERED].passes == [2, 2, 2, 2, 1, 1] * 2
    assert tasks[Level.FAST].passes == [4, 4, 2] * 2
    assert losses[Level.FAST] == pytest.approx(losses[Level.ORDERED], rel=1e-5)


class Pair(NamedTuple):
    x: Tensor
    name: list[str]


@pytest.mark.parametrize(
    ("batches", "merged"),
    [
        ([torch.ones(1, 2), torch.zeros(2, 2)], torch.tensor([[1.0, 1], [0, 0], [0, 0]])),
        ([{"x": torch.ones(1)}, {"x": torch.zeros(1)}], {"x": torch.tensor([1.0, 0])}),
        ([[torch.ones(1), ("a",)], [torch.zeros(1), ("b",)]], [torch.tensor([1.0, 0]), ("a", "b")]),
        ([Pair(torch.ones(1), ["a"]), Pair(torch.ones(1), ["b"])], Pair(torch.ones(2), ["a", "b"])),
    ],
)
def test_batches_of_any_form_become_one(batches: Sequence[Any], merged: object) -> None:
    assert repr(merge(batches)) == repr(merged)


@pytest.mark.parametrize("batches", [[torch.ones(1, 2), torch.ones(1, 3)], [1.5, 2.5], [{"x": 1}, {"y": 1}]])
def test_batches_that_do_not_go_together_are_told_in_a_sentence(batches: Sequence[Any]) -> None:
    with pytest.raises(BadTask, match="--level fast computes a rank's batch slices as one"):
        merge(batches)
