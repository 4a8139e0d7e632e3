"""The loop as the users of other libraries write it, each by that library's own documentation, reports turned off.

All get their batches from a DataLoader over :class:`bench.workloads.overhead_workload.Rows`, which costs little: what
is compared is what a library adds to a step, and not how samples are read.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bench.workloads.overhead_workload import (
    SEED,
    Clock,
    Pair,
    Rows,
    Timed,
    Workload,
    mean_loss,
    optimizer_of,
    world_size,
)


def _loader(work: Workload) -> DataLoader[Pair]:
    """Return a loader for one rank; the libraries give each rank its part themselves."""
    own = work.batch // world_size()
    generator = torch.Generator().manual_seed(SEED)
    return DataLoader(
        Rows(work.samples(work.count)),  # type: ignore[arg-type] # map-style, though no Dataset
        batch_size=own,
        shuffle=True,
        generator=generator,
        collate_fn=_identity,
    )


def _identity(pair: Any) -> Any:
    """``Rows.__getitems__`` has done it."""
    return pair


def _steps(loader: Any, clock: Clock) -> Iterator[Pair]:
    """Epoch after epoch, as many batches as there are to be steps."""
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), clock.steps)


def fabric(work: Workload, clock: Clock) -> None:
    """Lightning Fabric: one's own loop, set up by it."""
    from lightning.fabric import Fabric  # type: ignore[import-not-found,unused-ignore] # a peer

    world = world_size()
    made = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto")
    made.launch()
    model = Timed(work, clock)
    model, optimizer = made.setup(model, optimizer_of(model))
    for pair in _steps(made.setup_dataloaders(_loader(work)), clock):
        optimizer.zero_grad()
        made.backward(mean_loss(model, pair))
        optimizer.step()


def accelerate(work: Workload, clock: Clock) -> None:
    """Hugging Face Accelerate: one's own loop, with all parts prepared by it."""
    from accelerate import Accelerator  # type: ignore[import-not-found,unused-ignore] # a peer

    made = Accelerator(cpu=True)
    model = Timed(work, clock)
    model, optimizer, loader = made.prepare(model, optimizer_of(model), _loader(work))
    for pair in _steps(loader, clock):
        optimizer.zero_grad()
        made.backward(mean_loss(model, pair))
        optimizer.step()
    made.end_training()


def lightning(work: Workload, clock: Clock) -> None:
    """Lightning's Trainer, without logger, bar and checkpoints."""
    from lightning.pytorch import LightningModule, Trainer  # type: ignore[import-not-found,unused-ignore] # a peer

    class LossModule(LightningModule):  # type: ignore[misc,unused-ignore] # as above
        def __init__(self) -> None:
            super().__init__()
            self.inner = Timed(work, clock)

        def training_step(self, pair: Pair, _number: int) -> Tensor:
            return mean_loss(self.inner, pair)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.inner)

    Trainer(
        accelerator="cpu",
        max_steps=clock.steps,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(LossModule(), _loader(work))


def hf_trainer(work: Workload, clock: Clock) -> None:
    """Hugging Face's Trainer, without reports and saves."""
    from transformers import Trainer, TrainingArguments  # type: ignore[import-not-found,unused-ignore] # a peer

    class LossModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Timed(work, clock)

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": mean_loss(self.inner, (inputs, labels))}

    def collate(pair: Pair) -> dict[str, Tensor]:
        return dict(zip(("inputs", "labels"), pair, strict=True))

    model = LossModel()
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            max_steps=clock.steps,
            per_device_train_batch_size=work.batch,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            max_grad_norm=0.0,
            remove_unused_columns=False,
            lr_scheduler_type="constant",
            dataloader_pin_memory=False,
            seed=SEED,
        )
        Trainer(
            model=model,
            args=arguments,
            data_collator=collate,
            train_dataset=Rows(work.samples(work.count)),
            optimizers=(optimizer_of(model), None),
        ).train()
