"""Who reads which samples while the world shrinks: ours, and what the users of torch and other libraries do.

An arm answers with the ids that every rank read in every step, over one epoch whose world changes between steps. Each
is driven through its own public interface, from the state that its users save: for torch and Accelerate the number of
steps done, for Lightning its checkpoint.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from ddp_trainer.train.plan import Plan, cut, owned

SAMPLES: Final = 1000
SEED: Final = 3


@dataclass(frozen=True, slots=True)
class Resizes:
    """An epoch, and the worlds that share it: ``(ranks, steps)``; the last goes on to the end."""

    worlds: Sequence[tuple[int, int | None]]
    batch: Callable[[int], int]
    """Global batch of a world."""


Read = list[int]
"""Ids that were read, in whatever order."""


def account(read: Read) -> tuple[int, int]:
    """Samples of the epoch that nobody read, and readings beyond the first."""
    times = Counter(read)
    return SAMPLES - len(times), sum(times.values()) - len(times)


def ours(case: Resizes) -> Read:
    """The plan of our trainer, shard by shard as its ranks own them. The global batch stays that of the first world."""
    plan = Plan(samples=SAMPLES, global_batch=case.batch(case.worlds[0][0]), shards=4, seed=SEED, epochs=1)
    read: Read = []
    step = 0
    for world, steps in case.worlds:
        last = plan.total_steps if steps is None else step + steps
        for number in range(step, last):
            batch = plan.batch(number)
            for rank in range(world):
                for shard in owned(plan.shards, world, rank):
                    read += batch[cut(len(batch), plan.shards, shard)].tolist()
        step = last
    return read


def torch_sampler(case: Resizes) -> Read:
    """DistributedSampler, with the batches of the steps done so far skipped on every rank."""
    read: Read = []
    done = 0
    for world, steps in case.worlds:
        for rank in range(world):
            sampler: DistributedSampler[int] = DistributedSampler(range(SAMPLES), world, rank, seed=SEED)  # type: ignore[arg-type] # has len()
            own = case.batch(world) // world
            for batch in _window(BatchSampler(sampler, own, drop_last=False), done, steps):
                read += batch
        done += steps or 0
    return read


def accelerate(case: Resizes) -> Read:
    """``skip_first_batches`` on a prepared loader, as Accelerate's guide to checkpoints has it."""
    from accelerate import skip_first_batches  # type: ignore[import-not-found,unused-ignore] # a peer
    from accelerate.data_loader import prepare_data_loader  # type: ignore[import-not-found,unused-ignore] # a peer

    read: Read = []
    done = 0
    for world, steps in case.worlds:
        for rank in range(world):
            loader: DataLoader[int] = DataLoader(range(SAMPLES), batch_size=case.batch(world) // world)  # type: ignore[arg-type] # as above
            own = prepare_data_loader(loader, num_processes=world, process_index=rank, put_on_device=False)
            for batch in _window(skip_first_batches(own, done), 0, steps):
                read += batch.tolist()
        done += steps or 0
    return read


def _window(batches: Any, skipped: int, steps: int | None) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        if steps is not None and number >= skipped + steps:
            return
        if number >= skipped:
            yield batch


def lightning() -> Read:
    """Lightning's Trainer, stopped and resumed in the midst of the epoch by its own checkpoint; one process."""
    import torch
    from lightning.pytorch import LightningModule, Trainer, seed_everything  # type: ignore[import-not-found,unused-ignore]
    from lightning.pytorch.callbacks import ModelCheckpoint  # type: ignore[import-not-found,unused-ignore]

    read: Read = []

    class Module(LightningModule):  # type: ignore[misc,unused-ignore] # a peer has no types here
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: torch.Tensor, _number: int) -> torch.Tensor:
            read.extend(batch.tolist())
            return self.weight * batch.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def fit(folder: str, most: int, resumed: Path | None) -> None:
        seed_everything(SEED, verbose=False)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        saving = ModelCheckpoint(dirpath=folder, filename="middle", every_n_train_steps=10, save_top_k=-1)
        trainer = Trainer(accelerator="cpu", max_steps=most, max_epochs=1, callbacks=[saving], **quiet)
        loader: DataLoader[int] = DataLoader(range(SAMPLES), batch_size=24, shuffle=True)  # type: ignore[arg-type] # as above
        trainer.fit(Module(), loader, ckpt_path=resumed)

    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning warns of loaders that it cannot resume, which is what is measured
        fit(directory, 10, None)
        fit(directory, -1, Path(directory, "middle.ckpt"))
    return read
