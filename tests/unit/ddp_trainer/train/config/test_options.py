"""Options of computing: what they change, and what they refuse."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.enums import OptimizerName
from ddp_trainer.train import run
from ddp_trainer.train.cli import main
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import KernelName, LrScaling, ScheduleName
from ddp_trainer.train.data.batch_parts import micro_batches
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.buffer_sync import FirstRanksBuffers, SharedBuffers
from ddp_trainer.train.optim.loss_scale import LossScale
from ddp_trainer.train.optim.optimizer import OptimizerWrapper, lr_scale, nonfinite_flag, rate_factor
from ddp_trainer.train.parallel.factory import build
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations
from ddp_trainer.train.transforms.blocks import blocks
from ddp_trainer.train.transforms.model_transforms import channels_last
from ddp_trainer.train.utils.errors import BadConfig, BadTask
from ddp_trainer.train.utils.gc_control import manual_gc
from tests.support.train_builders import ALONE, HERE, Lines

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--strategy", "fsdp9"], "Argument --strategy: 'fsdp9' is none of ddp, "),
        (["--sync-steps", "0"], "--sync-steps is 0. Give 1 or more."),
        (["--micro-batch", "0"], "--micro-batch is 0. Give 1 or more."),
        (["--gc-steps", "-3"], "--gc-steps is -3. Give 1 or more."),
        (["--nonfinite-limit", "0"], "--nonfinite-limit is 0. Give 1 or more."),
        (["--bucket-mb", "nan"], "--bucket-mb is nan. Give a finite number above 0."),
        (["--strategy", "manual", "--static-graph"], "--static-graph is an option of DDP, and --strategy is manual."),
        (["--strategy", "manual", "--bucket-mb", "1"], "--bucket-mb is an option of DDP, and --strategy is manual."),
        (["--strategy", "single", "--no-gradient-as-bucket-view"], "--no-gradient-as-bucket-view is an option of DDP"),
        (["--static-graph", "--find-unused-parameters"], "A static graph finds unused weights by itself"),
        (["--strategy", "local-sgd", "--precision", "fp16"], "Give --precision bf16."),
        (["--compile-fallback"], "--compile-fallback was given without --compile. Add --compile."),
        (["--lr-scaling", "linear"], "--lr-scaling is linear and --lr-reference-batch is None. Give both"),
        (["--lr-reference-batch", "8"], "--lr-scaling is none and --lr-reference-batch is 8. Give both"),
        (["--precision", "fp64"], "Argument --precision: 'fp64' is none of "),
        (["--on-nonfinite", "rollback"], "--on-nonfinite is rollback, but no checkpoints are kept."),
        (["--sync-batchnorm", "--device", "cpu"], "torch's SyncBatchNorm does not run on the CPU."),
        (["--compile", "--compile-backend", "zzz"], "There is no compiler backend 'zzz'. Give one of "),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DDP_CHECKPOINT_DIR", raising=False)
    assert main(["--max-steps", "1", *argv]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_help_shows_every_option_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for heading in ("strategy:", "speed and memory:", "guards:", "optimization:"):
        assert f"\n{heading}\n" in said
    assert said.count("--no-gradient-as-bucket-view") >= 1


class Sums(nn.Module):
    """A loss that is linear in its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.layer(batch)
        return out


def a_strategy(name: str, group: Group, model: nn.Module, **options: object) -> Strategy:
    plan = BatchPlan(samples=20, global_batch=4, batch_slices=4, seed=0, epochs=2)
    config = Config(strategy=name, **options)  # type: ignore[arg-type] # by name
    return build(Parts(model=model, losses=lambda m, b: m(b).squeeze(1), group=group, plan=plan, config=config))


def test_gradients_travel_once_per_step_however_many_passes_it_has() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategy = a_strategy("ddp", Group(0, 2, "gloo", CPU), Sums())
        sent: list[int] = []

        def hook(_, bucket):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - DDP refuses postponed annotations
            sent.append(bucket.buffer().numel())
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        strategy._ddp.register_comm_hook(None, hook)  # type: ignore[attr-defined] # DDP's
        for step in range(3):
            strategy.begin(step)
            for _ in range(4):
                with strategy.no_sync():
                    strategy.backward(strategy.forward(torch.ones(2, 2)), 10)
            assert len(sent) == step
            strategy.backward(strategy.forward(torch.ones(2, 2)), 10)
            assert len(sent) == step + 1
            strategy.reduce(10)
            assert len(sent) == step + 1
    finally:
        dist.destroy_process_group()


def test_local_sgd_is_one_model_after_every_so_many_steps_an_epoch_and_the_run() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategy = a_strategy("local-sgd", Group(0, 2, "gloo", CPU), Sums(), sync_steps=3)
        assert [steps for steps in range(1, 11) if strategy.synchronize_with_timeout(steps)] == [3, 5, 6, 9, 10]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["ddp", "manual", "local-sgd"])
def test_one_rank_needs_no_peers(name: str) -> None:
    assert type(a_strategy(name, ALONE, Sums())) is Strategy


def test_micro_batches_are_pieces_of_the_batch_in_order() -> None:
    pair = namedtuple("pair", "x y")  # noqa: PYI024 - what users hand over need not be typed
    batch = {"a": torch.arange(5), "b": [torch.arange(5), ("p", "q", "r", "s", "t")], "c": pair(torch.ones(5, 2), 0)}
    batch["c"] = pair(torch.ones(5, 2), torch.arange(5))
    pieces = list(micro_batches(batch, 5, 2))
    assert [piece["a"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4]]
    assert [piece["b"][1] for piece in pieces] == [("p", "q"), ("r", "s"), ("t",)]
    assert [piece["c"].x.shape[0] for piece in pieces] == [2, 2, 1]
    assert list(micro_batches(batch, 5, 5)) == [batch]


@pytest.mark.parametrize("batch", [torch.ones(3), (torch.ones(5), 7), {"a": torch.ones(4)}])
def test_a_batch_that_cannot_be_cut_is_refused(batch: object) -> None:
    with pytest.raises(BadTask, match="--micro-batch cuts a batch of 5 samples"):
        list(micro_batches(batch, 5, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_gradient_that_is_not_finite_is_found_wherever_it_is(bad: float, dtype: torch.dtype) -> None:
    gradients = [torch.ones(3, dtype=dtype), torch.ones(2, 2, dtype=dtype)]
    before = [each.clone() for each in gradients]
    assert nonfinite_flag(gradients) == 0
    assert all(torch.equal(one, other) for one, other in zip(gradients, before, strict=True))
    gradients[1][1, 0] = bad
    assert nonfinite_flag(gradients) != 0
    assert nonfinite_flag(gradients, nn.utils.get_total_norm(gradients)) != 0


def test_no_gradients_have_no_flaw() -> None:
    assert nonfinite_flag([]) == 0


def test_torch_still_has_the_kernel_that_finds_flaws_fast() -> None:
    # Without it every step pays for a norm; nothing else breaks.
    assert hasattr(torch, "_amp_foreach_non_finite_check_and_unscale_")


def test_torch_still_answers_whether_a_processor_has_fp16() -> None:
    # Without it, fp16 is tried wherever it is asked for.
    assert isinstance(torch.ops.mkldnn._is_mkldnn_fp16_supported(), bool)


def test_torch_still_lets_determinism_be_asked_for_without_its_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from ddp_trainer.train.transforms.model_transforms import be_deterministic\n"
        "be_deterministic()\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_neither_options_nor_fp16_import_the_compiler() -> None:
    program = (
        "import sys\n"
        "from ddp_trainer.train.transforms import precision\n"
        "from ddp_trainer.train.cli import main\n"
        "precision._cpu_has_fp16 = lambda: True\n"
        "flags = ['--precision', 'fp16', '--activation-checkpointing', '--channels-last', '--deterministic']\n"
        "assert main(['--max-steps', '2', '--clip-norm', '1', '--gc-steps', '1', *flags]) == 0\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def a_step(optimization: OptimizerWrapper, model: nn.Module, size: float) -> Tensor:
    optimization.zero_grad()
    torch.autograd.backward(optimization.scaled((model(torch.ones(1, 1)) * size).sum()))
    return optimization.check_grads()


def test_a_loss_scale_is_halved_by_an_overflow_and_survives_a_checkpoint() -> None:
    model = nn.Linear(1, 1)
    first = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, LossScale(CPU))
    assert a_step(first, model, 1.0) == 0
    weight = next(model.parameters())
    assert weight.grad is not None
    assert weight.grad.item() == 1.0  # scaled up, and down again
    first.step(0)
    assert a_step(first, model, 1e38) != 0
    assert first.back_off()
    assert first.loss_scale == 32768
    second = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, LossScale(CPU))
    second.load_loss_scale(first.loss_scale_state())
    assert second.loss_scale == 32768
    assert a_step(second, model, 1.0) == 0
    second.step(1)


def test_a_step_whose_vote_was_never_heard_leaves_the_loss_scale_usable() -> None:
    model = nn.Linear(1, 1)
    optimization = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, LossScale(CPU))
    assert a_step(optimization, model, 1e38) != 0
    optimization.discard_step()  # a peer was lost
    assert all(weight.grad is None for weight in model.parameters())
    assert a_step(optimization, model, 1.0) == 0
    optimization.step(0)
    assert optimization.loss_scale == 65536


def test_a_stage_that_learns_nothing_scales_as_the_others_do() -> None:
    scales = []
    for learns in (True, False):
        model = nn.Linear(1, 1).requires_grad_(learns)
        scale = LossScale(CPU)
        scale.load_state_dict({**scale.state_dict(), "growth_interval": 2})
        optimization = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, scale)
        for step in range(2):
            optimization.zero_grad()
            if learns:
                torch.autograd.backward(optimization.scaled(model(torch.ones(1, 1)).sum()))
            assert optimization.check_grads() == 0
            optimization.step(step)
        scales.append(optimization.loss_scale)
    assert scales == [131072, 131072]


def test_a_loss_scale_of_one_is_not_what_overflows() -> None:
    scale = LossScale(CPU)
    scale.up(torch.ones(()))
    assert [scale.back_off() for _ in range(16)] == [True] * 16
    assert scale.value == 1
    assert not scale.back_off()


def test_other_precisions_have_no_loss_scale() -> None:
    optimization = OptimizerWrapper.build(Lines(), nn.Linear(1, 1), Config(), 10)
    assert (optimization.loss_scale, optimization.loss_scale_state(), optimization.back_off()) == (1.0, None, False)
    optimization.load_loss_scale({"scale": 2.0})


@pytest.mark.parametrize("optimizer", OptimizerName)
def test_every_kernel_takes_the_same_step(optimizer: OptimizerName) -> None:
    weights = []
    for kernel in KernelName:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        config = Config(optimizer=optimizer, optimizer_kernel=kernel, warmup_steps=0)
        optimization = OptimizerWrapper.build(Lines(), model, config, 10)
        torch.autograd.backward(model(torch.ones(4, 3)).square().sum())
        optimization.check_grads()
        optimization.step(0)
        weights.append(model.weight.detach())
    assert all(torch.allclose(each, weights[0], rtol=1e-5) for each in weights)


def test_clipping_bounds_the_norm_of_the_step() -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    config = Config(optimizer=OptimizerName.SGD, learning_rate=1.0, momentum=0, weight_decay=0, clip_norm=0.5)
    optimization = OptimizerWrapper.build(Lines(), model, Config(**{**vars_of(config), "warmup_steps": 0}), 10**9)
    torch.autograd.backward((model(torch.ones(1, 2)) * 100).sum())
    optimization.check_grads()
    optimization.step(0)
    moved = (model.weight.detach() - before).norm()
    assert 0.4 * 0.5 < moved <= 0.5


def vars_of(config: Config) -> dict[str, object]:
    from dataclasses import fields

    return {each.name: getattr(config, each.name) for each in fields(config)}


def test_a_linear_schedule_falls_to_nothing_in_equal_steps() -> None:
    factors = [rate_factor(ScheduleName.LINEAR, step, 2, 12) for step in range(12)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert rate_factor(ScheduleName.LINEAR, 20, 2, 12) == 0


@pytest.mark.parametrize(("rule", "factor"), [(LrScaling.LINEAR, 4.0), (LrScaling.SQRT, 2.0)])
def test_the_rate_follows_the_batch_on_request_alone(rule: LrScaling, factor: float) -> None:
    config = Config(global_batch=64, lr_scaling=rule, lr_reference_batch=16, warmup_steps=0)
    assert lr_scale(config) == factor
    assert lr_scale(Config(global_batch=1024)) == 1.0
    model = nn.Linear(1, 1)
    optimization = OptimizerWrapper.build(Lines(), model, config, 10)
    torch.autograd.backward(model(torch.ones(1, 1)).sum())
    optimization.step(0)
    assert optimization.learning_rate == pytest.approx(factor * config.learning_rate)


class Collected(Lines):
    """Notes how often garbage had been collected when each step began to compute."""

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
    task = Collected()
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


def test_activations_are_computed_again_and_gradients_stay_the_same() -> None:
    class Counted(nn.Linear):
        calls = 0

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
            Counted.calls += 1
            return super().forward(input)

    torch.manual_seed(0)
    model = nn.Sequential(Counted(3, 3), nn.Dropout(0.5), nn.ReLU(), Counted(3, 1))
    gradients = []
    for again in (False, True):
        if again:
            assert checkpoint_activations(model) == 2
        Counted.calls = 0
        model.zero_grad()
        torch.manual_seed(1)
        torch.autograd.backward(model(torch.ones(2, 3)).sum())
        assert Counted.calls == (4 if again else 2)
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_blocks_are_the_layers_of_a_list_before_those_of_a_sequence() -> None:
    inner = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert blocks(nn.Sequential(inner, nn.ReLU())) == [inner]
    model = nn.Sequential(nn.ModuleList([inner]), nn.Linear(1, 1))
    assert blocks(model) == [inner]
    with pytest.raises(BadConfig, match="finds no blocks in Linear"):
        checkpoint_activations(nn.Linear(1, 1))


def test_images_are_laid_out_as_convolutions_prefer() -> None:
    images, labels = channels_last((torch.ones(2, 3, 4, 4), torch.ones(2)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.shape == (2,)
    assert channels_last({"a": [torch.ones(1, 2, 2, 2)]})["a"][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", [SharedBuffers, FirstRanksBuffers])
def test_a_skipped_step_leaves_running_statistics_where_they_were(kind: type[SharedBuffers]) -> None:
    model = nn.BatchNorm1d(2)
    buffers = kind(model, ALONE)
    model(torch.tensor([[float("nan"), 1.0], [2.0, 3.0]]))
    buffers.slice_done()
    buffers.discard()
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [0.0, 0.0]
    model(torch.tensor([[10.0, 10.0], [10.0, 10.0]]))
    buffers.slice_done()
    buffers.gather()
    buffers.commit()
    assert model.running_mean.tolist() == pytest.approx([1.0, 1.0])


def test_rank_0s_buffers_pass_from_slice_to_slice() -> None:
    model = nn.BatchNorm1d(1)
    buffers = FirstRanksBuffers(model, ALONE)
    for value in (10.0, 20.0):
        model(torch.full((2, 1), value))
        buffers.slice_done()
    buffers.gather()
    buffers.commit()
    assert model.running_mean is not None
    assert model.running_mean.item() == pytest.approx(0.9 * 1.0 + 2.0)
    assert model.num_batches_tracked == 2


COMPILED = ["--max-steps", "3", "--log-steps", "1", "--log-json", "--compile"]


def train(flags: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_trainer", "train", *flags]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=200, check=False)


def test_a_compiled_model_trains() -> None:
    done = train([*COMPILED, "--compile-backend", "aot_eager"])
    assert done.returncode == 0, done.stderr
    assert '"event": "summary"' in done.stdout


@pytest.mark.parametrize("fallback", [False, True])
def test_a_model_that_cannot_be_compiled_says_so_and_trains_on_request(fallback: bool, tmp_path: Path) -> None:
    """With a compiler that is not there."""
    missing = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = train([*COMPILED, *(["--compile-fallback"] if fallback else [])], **missing)
    said = done.stdout if fallback else done.stderr
    assert done.returncode == (0 if fallback else Exit.USAGE), done.stderr
    assert ("and is trained uncompiled: " if fallback else "error: The model could not be compiled: ") in said
    assert fallback or len(done.stderr.splitlines()) == 1
