"""A whole run in this process, as a library."""

from __future__ import annotations

import gc
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer import elastic, train
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime, Section
from ddp_trainer.process.recorder import SECTION_NUMBERS, NoopRankRecorder
from ddp_trainer.train import Config, run
from ddp_trainer.train.data import sample_order
from ddp_trainer.train.loop.run_context import make_contiguous
from ddp_trainer.train.trainer import manual_gc
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.train_builders import HERE, Killed, Lines, kill_after, lines_config


def a_config(path: Path | None = None, **changes: object) -> Config:
    return lines_config(**{"epochs": 4, "checkpoint_dir": path, **changes})


class Journal(NoopRankRecorder):
    """Records the calls of the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, int]] = []
        self.phases: list[tuple[float, ...]] = []
        self.saved: list[int] = []
        self.gauges: dict[str, float | None] = {}
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.last_account: JobAccount | None = None
        self.progressed: list[tuple[float, float]] = []
        self.tokens = self.flops = 0.0
        self.norms: list[float | None] = []
        self.how: tuple[str, str] | None = None

    def job(self, *, precision: str, parallelism: str) -> None:
        self.how = precision, parallelism

    def work(self, tokens: float, flops: float) -> None:
        self.tokens += tokens
        self.flops += flops

    def gradients(self, norm: float | None, loss_scale: float | None) -> None:
        assert loss_scale is None, "there is none in 32 bits"
        self.norms.append(norm)

    def put(self, metric: str, value: float | None) -> None:
        self.gauges[metric] = value

    def add(self, metric: str, amount: float = 1.0) -> None:
        self.counters[metric] += amount

    def step(self, step: int, epoch: int, samples: int, *phases: float) -> None:  # type: ignore[override]
        self.steps.append((step, epoch, samples))
        self.phases.append(phases)

    def progress(self, loss: float, learning_rate: float) -> None:
        self.progressed.append((loss, learning_rate))

    def checkpoint_saved(self, step: int, *_: float) -> None:  # type: ignore[override]
        self.saved.append(step)

    def account(self, account: JobAccount) -> None:
        self.last_account = account


def test_the_recorder_hears_of_every_step_and_of_all_its_time() -> None:
    journal = Journal()
    outcome = run(a_config(), Lines(), journal, env=HERE)
    assert journal.gauges[Metric.STEPS_PLANNED] == 12
    assert journal.steps[:4] == [(1, 0, 4), (2, 0, 4), (3, 0, 2), (4, 1, 4)]
    assert all(len(phases) == 8 and min(phases) >= 0 for phases in journal.phases)
    assert journal.progressed[0][1] == pytest.approx(0.1)
    assert journal.progressed[-1][0] < journal.progressed[0][0]
    assert (journal.tokens, journal.flops, {*journal.norms}) == (0, 0, {None}), "this model and task count neither"
    summary = outcome.summary
    assert (outcome.exit_code, summary.steps, summary.samples_lost, summary.samples_repeated) == (0, 12, 0, 0)
    assert summary.accuracy is None
    assert summary.loss == summary.metrics["loss"]


def test_the_launcher_sees_the_section_of_the_step_while_it_is_in_it() -> None:
    journal, seen = Journal(), set()

    class Watched(Lines):
        def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
            seen.add(journal.marks[0])
            return super().losses(model, batch)

    run(a_config(), Watched(), journal, env=HERE)
    assert SECTION_NUMBERS[Section.FORWARD] in seen
    assert journal.marks[0] == 0, "the run is over"


class OfWords(Lines):
    """A task whose model has its tokens and operations per sample."""

    def model(self) -> nn.Module:
        model = super().model()
        model.tokens_per_sample = lambda: 8  # type: ignore[assignment]
        model.flops_per_sample = lambda: 1000  # type: ignore[assignment]
        return model


def test_the_recorder_hears_what_the_model_says_of_its_work_and_how_large_gradients_are() -> None:
    journal = Journal()
    run(a_config(clip_norm=1e-3), OfWords(), journal, env=HERE)
    samples = sum(step[2] for step in journal.steps)
    assert (journal.tokens, journal.flops) == (8 * samples, 1000 * samples)
    assert journal.how == ("fp32", "ddp")
    assert journal.norms[0] is not None
    assert journal.norms[0] > 1e-3, "the norm before it was clipped"


def test_saving_follows_the_steps_and_the_end_is_always_saved(tmp_path: Path) -> None:
    journal = Journal()
    run(a_config(tmp_path, checkpoint_steps=5, checkpoint_seconds=None), Lines(), journal, env=HERE)
    assert journal.saved == [5, 10, 12]


def test_saving_follows_the_clock(tmp_path: Path) -> None:
    journal = Journal()
    run(a_config(tmp_path, checkpoint_seconds=0, checkpoint_mode="sync"), Lines(), journal, env=HERE)
    assert journal.saved == list(range(1, 13))


def test_a_run_goes_on_to_the_same_weights_and_counts_what_it_lost(tmp_path: Path) -> None:
    undisturbed = run(a_config(tmp_path / "whole", batch_slices=1), Lines(), env=HERE)
    config = a_config(tmp_path / "killed", batch_slices=1, checkpoint_steps=4, checkpoint_seconds=None)
    with pytest.raises(Killed):
        run(config, Lines(kill_after(7)), env=HERE)
    journal = Journal()
    resumed = run(config, Lines(), journal, env=HERE)
    assert journal.counters[Metric.CHECKPOINT_LOAD_SECONDS] > 0
    account = journal.last_account
    assert (account.lost_steps, journal.steps[0][0]) == (3, 5)
    assert resumed.summary.lost_steps == 3
    # The account is reported ten times per second, so three short steps may have cost no reported time.
    assert 0 <= account.lost_seconds == pytest.approx(resumed.summary.lost_seconds, abs=1e-3)
    assert sum(resumed.summary.spent.values()) == pytest.approx(resumed.summary.seconds, abs=0.01)
    assert len(account.seconds) == len(JobTime)
    assert resumed.summary.loss == undisturbed.summary.loss
    assert resumed.summary.samples_repeated == resumed.summary.samples_lost == 0
    assert resumed.summary.goodput < 1


def test_lost_steps_add_up_over_restarts_without_any_checkpoint(tmp_path: Path) -> None:
    config = a_config(tmp_path, batch_slices=1, checkpoint_seconds=None)
    for calls in (3, 2):
        with pytest.raises(Killed):
            run(config, Lines(kill_after(calls)), env=HERE)
    assert run(config, Lines(), env=HERE).summary.lost_steps == 5


def test_a_finished_run_with_more_epochs_goes_on(tmp_path: Path) -> None:
    run(a_config(tmp_path), Lines(), env=HERE)
    assert run(a_config(tmp_path, epochs=6), Lines(), env=HERE).summary.steps == 18


def test_slices_of_the_checkpoint_are_kept_when_none_are_asked_for(tmp_path: Path) -> None:
    run(a_config(tmp_path, batch_slices=2, epochs=1), Lines(), env=HERE)
    assert run(a_config(tmp_path), Lines(), env=HERE).summary.batch_slices == 2


def test_a_run_keeps_the_order_of_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = run(a_config(batch_slices=1), Lines(), env=HERE)
    config = a_config(tmp_path, batch_slices=1, checkpoint_steps=4, checkpoint_seconds=None)
    with pytest.raises(Killed):
        run(config, Lines(kill_after(7)), env=HERE)
    monkeypatch.setattr(sample_order, "_MOST_LISTED", 4)
    resumed = run(config, Lines(), env=HERE)
    computed = run(a_config(batch_slices=1), Lines(), env=HERE)
    assert resumed.summary.loss == undisturbed.summary.loss != computed.summary.loss
    assert computed.summary.samples_repeated == computed.summary.samples_lost == 0


def test_the_seed_decides_the_result() -> None:
    losses = [run(a_config(seed=seed), Lines(), env=HERE).summary.loss for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_a_plain_torch_data_set_will_do() -> None:
    class Plain(Lines):
        def train_samples(self) -> torch.utils.data.Dataset[Tensor]:  # type: ignore[override]
            return torch.utils.data.StackDataset(torch.arange(10.0).unsqueeze(1) / 10)  # type: ignore[return-value]

        def losses(self, model: nn.Module, batch: Tensor | tuple[Tensor]) -> Tensor:
            return super().losses(model, batch if isinstance(batch, Tensor) else batch[0])

    assert run(a_config(), Plain(), env=HERE).summary.loss == run(a_config(), Lines(), env=HERE).summary.loss


def test_a_data_set_smaller_than_a_global_batch_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    train.run(Config(epochs=1, global_batch=16, batch_slices=2), Lines(), env=HERE)
    stderr = capsys.readouterr().err
    assert "10 samples per rank" in stderr
    assert "The data set has 10 samples, fewer than the global batch of 16: every epoch is one step of all" in stderr
    train.run(Config(epochs=1, global_batch=10, batch_slices=2), Lines(), env=HERE)
    assert "fewer than" not in capsys.readouterr().err


class FSDPModule:
    """A class with the name of torch's base class of sharded modules."""


class Sharded(FSDPModule, nn.Linear):
    """A layer like those that ``fully_shard`` returns."""


@pytest.mark.parametrize("wrapper", [nn.parallel.DistributedDataParallel, Sharded], ids=["DDP", "FSDP2"])
def test_a_model_that_holds_state_of_a_group_is_refused_by_name(wrapper: type[nn.Module]) -> None:
    inner = wrapper.__new__(wrapper)
    nn.Module.__init__(inner)
    model = nn.Sequential(nn.Linear(1, 1), inner)
    with (
        pytest.raises(BadConfig, match="whose state does not survive a change of the group") as caught,
        elastic.run(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(8, 1), global_batch=8),
    ):
        raise AssertionError("it trains")
    assert "plain model" in str(caught.value)


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (nn.Parameter(torch.ones(1)), ("_base", "_use_count", "_backward_hooks", "_post_accumulate_grad_hooks")),
        (torch.ops.aten.add.Tensor, ("_schema",)),
        (torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info, ("is_write",)),
        (nn.Linear(1, 1), ("_compiled_call_impl",)),
        (nn.parallel.DistributedDataParallel, ("_check_reducer_finalized",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_objects_of_this_torch_have_what_the_trainer_asks_them(thing: object, names: tuple[str, ...]) -> None:
    assert all(hasattr(thing, name) for name in names)


class CollectionCounter(Lines):
    """A task that records the number of collections at each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.collections = 0
        self.at_steps: list[int] = []

    def count(self, phase: str, _: object) -> None:
        self.collections += phase == "start"

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.at_steps.append(self.collections)
        return super().losses(model, batch)


def test_garbage_is_collected_when_told_and_at_no_other_time() -> None:
    task = CollectionCounter()
    gc.callbacks.append(task.count)
    try:
        run(Config(max_steps=7, global_batch=1, batch_slices=1, gc_steps=3), task, env=HERE)
    finally:
        gc.callbacks.remove(task.count)
    training = task.at_steps[:7]
    assert [count - training[0] for count in training] == [0, 0, 0, 1, 1, 1, 2]
    assert gc.isenabled()
    with manual_gc(None):
        assert gc.isenabled()


def tangled() -> nn.Module:
    model = nn.Linear(2, 3, bias=False)
    model.weight = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    model.register_buffer("one_for_all", torch.arange(3.0).expand(4, 3))
    model.register_buffer("every_other", torch.arange(6)[::2])
    model.register_buffer("few", torch.eye(2).to_sparse())
    return model


def test_tensors_are_laid_out_in_place_and_hold_what_they_held() -> None:
    for spreads in (False, True):
        model, wanted = tangled(), tangled()
        weight, buffer = model.weight, model.get_buffer("one_for_all")
        make_contiguous(model, spreads=spreads)
        assert model.weight is weight
        assert model.get_buffer("one_for_all") is buffer
        assert weight.is_contiguous() is spreads
        assert all(each.is_contiguous() for each in model.buffers() if not each.is_sparse)
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(model.state_dict()[name].to_dense(), tensor.to_dense())


def test_a_run_keeps_buffers_of_which_one_row_stands_for_many() -> None:
    class Wide(Lines):
        def model(self) -> nn.Module:
            model = super().model()
            model.register_buffer("row", torch.arange(3.0).expand(4, 3))
            return model

    assert run(lines_config(), Wide(), env=HERE).summary.steps == 3
