"""Samples that each rank reads while the world shrinks: our trainer, and the usual code with torch and other libraries.

Each arm is one rank of a worker group. It trains a model of one weight through its library's public interface, and
resumes from what its users save: for torch and Accelerate the number of steps done, for Lightning, Hugging Face and
ours their checkpoint. Batches hold the numbers of the samples, so a training step knows what it was computed on.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from bench.workloads.elastic_epoch import SAMPLES, SEED, Log, Stage

CHECKPOINT_STEPS: Final = 4
"""Checkpoint interval of our trainer, in steps. A kill costs repeated steps, and must cost no sample."""


def reference_trainer(stage: Stage, log: Log) -> None:
    """Our trainer, whose last rank is killed in the midst of the step after ``stop``; it keeps the first batch size."""
    train_reference(stage, log, IndexSamples(stage, log))


def train_reference(stage: Stage, log: Log, task: IndexSamples) -> None:
    """Train a task with our trainer, as one rank of the group."""
    from ddp_trainer.process.recorder import NoopRankRecorder
    from ddp_trainer.train import Config, TrainError, run

    class CommitRecorder(NoopRankRecorder):
        def step(self, step: int, *_: float) -> None:  # type: ignore[override]
            task.step = step
            log.record_commit(step)

    # The batch is a promise of the run, and not of the world.
    batch = stage.directory / "batch"
    if stage.number == 0 and stage.rank == 0:
        batch.write_text(str(stage.batch))
    config = Config(
        epochs=1,
        global_batch=stage.batch if stage.number == 0 else int(batch.read_text()),
        seed=SEED,
        checkpoint_dir=stage.directory / "checkpoints",
        checkpoint_steps=CHECKPOINT_STEPS,
    )
    try:
        run(config, task, CommitRecorder())
    except TrainError as err:
        # As its command leaves: a group that has lost a rank cannot be closed.
        os._exit(err.exit_code)


class IndexSamples:
    """Samples that are their own numbers."""

    name = "numbers"

    def __init__(self, stage: Stage, log: Log) -> None:
        self._stage = stage
        self._log = log
        self.step = 0

    def model(self) -> Any:
        import torch

        return torch.nn.Linear(1, 1)

    def train_samples(self) -> Any:
        return range(SAMPLES)

    def test_samples(self) -> range:
        return range(0)

    def losses(self, model: Any, batch: Any) -> Any:
        self._log.read(batch.tolist())
        stage = self._stage
        if self.step == stage.stop and stage.rank == stage.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return model(batch.float().unsqueeze(1) / SAMPLES).square().squeeze(1)

    def metrics(self, model: Any, batch: Any) -> Mapping[str, Any]:
        return {"loss": self.losses(model, batch).sum()}


def torch_sampler(stage: Stage, log: Log) -> None:
    """DistributedSampler under DDP, with the batches of the steps done so far skipped on every rank."""
    import torch.distributed as dist
    from torch import nn
    from torch.optim import SGD
    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    optimizer = SGD(model.parameters(), lr=1e-3)
    sampler: DistributedSampler[int] = DistributedSampler(range(SAMPLES), seed=SEED)  # type: ignore[arg-type] # has len()
    loader: DataLoader[int] = DataLoader(range(SAMPLES), batch_size=stage.batch // stage.world, sampler=sampler)  # type: ignore[arg-type] # as above
    for step, batch in _window(loader, stage, skipped=_done(stage)):
        optimizer.zero_grad()
        _loss(model, batch, log).backward()
        optimizer.step()
        log.record_commit(step)
    dist.barrier()


def accelerate(stage: Stage, log: Log) -> None:
    """``skip_first_batches`` on a prepared loader, as Accelerate's guide to checkpoints has it."""
    import torch
    from accelerate import Accelerator  # type: ignore[import-not-found,unused-ignore] # a peer
    from accelerate.utils import set_seed  # type: ignore[import-not-found,unused-ignore] # a peer
    from torch.utils.data import DataLoader

    set_seed(SEED)
    accelerator = Accelerator(cpu=True)
    linear = torch.nn.Linear(1, 1)
    loader: DataLoader[int] = DataLoader(range(SAMPLES), batch_size=stage.batch // stage.world, shuffle=True)  # type: ignore[arg-type] # as above
    model, optimizer, own = accelerator.prepare(linear, torch.optim.SGD(linear.parameters(), lr=1e-3), loader)
    own.set_epoch(0)
    done = _done(stage)
    for step, batch in _window(accelerator.skip_first_batches(own, done), stage, skipped=0, first=done):
        optimizer.zero_grad()
        accelerator.backward(_loss(model, batch, log))
        optimizer.step()
        log.record_commit(step)
    accelerator.wait_for_everyone()


def lightning(stage: Stage, log: Log) -> None:
    """Lightning's Trainer under DDP, stopped by ``max_steps`` and resumed from its own checkpoint."""
    import torch
    from lightning.pytorch import LightningModule, Trainer, seed_everything  # type: ignore[import-not-found,unused-ignore]
    from lightning.pytorch.callbacks import ModelCheckpoint  # type: ignore[import-not-found,unused-ignore]
    from torch.utils.data import DataLoader

    class Module(LightningModule):  # type: ignore[misc,unused-ignore] # a peer has no types here
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, _number: int) -> torch.Tensor:
            return _loss(self.linear, batch, log)

        def on_train_batch_end(self, *_: Any) -> None:
            log.record_commit(self.global_step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    seed_everything(SEED, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    every = stage.stop or SAMPLES
    saving = ModelCheckpoint(dirpath=stage.directory, filename=f"{stage.number}", every_n_train_steps=every)
    before = stage.directory / f"{stage.number - 1}.ckpt"
    loader: DataLoader[int] = DataLoader(range(SAMPLES), batch_size=stage.batch // stage.world, shuffle=True)  # type: ignore[arg-type] # as above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders that it cannot resume, which is what is measured
        trainer = Trainer(
            accelerator="cpu",
            devices=stage.world,
            strategy="ddp",
            max_steps=stage.stop or -1,
            max_epochs=1,
            callbacks=[saving],
            **quiet,
        )
        trainer.fit(Module(), loader, ckpt_path=before if before.exists() else None)


def hugging_face(stage: Stage, log: Log) -> None:
    """Hugging Face's Trainer under DDP, stopped by a callback and resumed from its own checkpoint."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[import-not-found,unused-ignore]

    class ZeroLossModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def forward(self, number: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": _loss(self.linear, number, log)}

    class Stop(TrainerCallback):  # type: ignore[misc,unused-ignore] # a peer has no types here
        def on_step_end(self, _arguments: Any, state: Any, control: Any, **_: Any) -> None:
            log.record_commit(state.global_step)
            control.should_training_stop = state.global_step == stage.stop

    arguments = TrainingArguments(
        output_dir=str(stage.directory),
        per_device_train_batch_size=stage.batch // stage.world,
        num_train_epochs=1,
        save_strategy="no" if stage.stop is None else "steps",
        save_steps=stage.stop or SAMPLES,
        seed=SEED,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    saved = max(stage.directory.glob("checkpoint-*"), default=None)
    rows = [{"number": number} for number in range(SAMPLES)]
    Trainer(ZeroLossModel(), arguments, train_dataset=rows, callbacks=[Stop()]).train(
        resume_from_checkpoint=None if saved is None else str(saved)
    )


def _done(stage: Stage) -> int:
    """Steps that the groups before have done, as their rank 0 saved; and notes what this one will have."""
    before, own = (stage.directory / f"steps-{number}" for number in (stage.number - 1, stage.number))
    if stage.rank == 0 and stage.stop is not None:
        own.write_text(str(stage.stop))
    return int(before.read_text()) if before.exists() else 0


def _window(batches: Any, stage: Stage, *, skipped: int, first: int | None = None) -> Iterator[tuple[int, Any]]:
    """The batches of this group, each with the number of steps that are done after it."""
    first = skipped if first is None else first
    most = None if stage.stop is None else stage.stop - first + skipped
    yield from enumerate(islice(batches, skipped, most), start=first + 1)


def _loss(model: Any, batch: Any, log: Log) -> Any:
    log.read(batch.tolist())
    return model(batch.float().unsqueeze(1) / SAMPLES).square().mean()
