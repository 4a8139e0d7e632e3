"""Results of runs as one SHA-256, and the tasks and programs whose bits the tests compare.

Started as a program, it trains as the flags say, on the task below, and dies by SIGKILL at the place that ``DIE_AT``
names as ``place:calls``: see :data:`PLACES`. Rank 0 does. Rank ``UNLIKE_RANK`` computes with two threads.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.train import BadSample, cli
from ddp_trainer.train.checkpoint.checkpoint_files import directories, read, unpack
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.data.batch_reader import sha256
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.parallel.bitwise_ddp import Exact
from ddp_trainer.train.parallel.load_balancer import LoadBalancer
from ddp_trainer.train.transforms import precision
from ddp_workloads.digits import Digits, LabeledImages
from tests.local.workloads.train_group import WorkerGroup

TASK = f"{__name__}:SmallDigits"


class SmallDigits(Digits):
    """Real digits, few enough that some slices of an epoch's last step are empty; convolution, BatchNorm, dropout."""

    name = "small-digits"

    def __init__(self) -> None:
        super().__init__()
        self._train = LabeledImages(self._train.images[:110], self._train.labels[:110])

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(512, 33),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(33, 10),
        )


class _Unreadable(LabeledImages):
    """The first 40 of them cannot be read; one at a time, so that it is known which."""

    batch = None  # type: ignore[assignment] # what says that many can be read at once

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index < 40:
            raise BadSample(f"Image {index} is torn.")
        return super().__getitem__(index)


class TornDigits(SmallDigits):
    """Digits of which some slices cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self._train = _Unreadable(self._train.images, self._train.labels)


class OverflowingDigits(SmallDigits):
    """Gradients of one sample are too large for fp16 at the first loss scale."""

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, _ = batch
        marked = (images == self._train.images[7]).all(dim=1)
        return super().losses(model, batch) * torch.where(marked, 1e3, 1.0)


class ThreeHeads(nn.Module):
    """The second is used by some slices, the third by none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, 10) for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.first(images)
        return logits + self.second(images) if float(images[0].sum()) > 20 else logits


class UnusedDigits(SmallDigits):
    """Some weights take part in some slices, some in none."""

    def model(self) -> nn.Module:
        return ThreeHeads()


class Runs:
    """Generations of one run in one directory, whose losses are taken down step by step."""

    def __init__(self, directory: Path, flags: Sequence[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.checkpoints = directory / "checkpoints"
        self._flags = ["--task", TASK, "--log-steps", "1", "--checkpoint-dir", str(self.checkpoints), *flags]
        self._generation = 0
        self._losses: dict[int, float] = {}
        self.metrics: list[dict[str, float]] = []
        self.said = ""
        """stderr of rank 0 of the last generation."""
        self.notes: list[str] = []
        """Messages of the runs about bits."""
        self.batch_slices: list[int] = []
        """Slices of each rank, where they were balanced."""
        self.summary: dict[str, Any] = {}
        """Summary of the last generation that ended."""

    def train(self, world: int, *flags: str, die_at: str = "", unlike_rank: int | None = None) -> list[int]:
        """One more generation; its exit codes. A step that is done again must come to the same loss."""
        with WorkerGroup(
            world,
            [*self._flags, *flags],
            directory=self._directory,
            program=("-m", __name__),
            generation=self._generation,
            env={"DIE_AT": die_at, "UNLIKE_RANK": str(unlike_rank)},
        ) as group:
            for event in group.events():
                if event["event"] == "step":
                    before = self._losses.setdefault(event["step"], event["loss"])
                    assert before == event["loss"], f"step {event['step']} came to {before}, then {event['loss']}"
                if event["event"] == "evaluated":
                    self.metrics.append(event["metrics"])
                if event["event"] == "note" and event["text"].startswith(("The steps so far", "Weights and optimizer")):
                    self.notes.append(event["text"])
                if event["event"] == "summary":
                    self.summary = event["summary"]
                if event["event"] == "balanced":
                    self.batch_slices = event["batch_slices"]
            codes = group.finish()
            self.said = group.stderr()
        self._generation += 1
        return codes

    @property
    def steps(self) -> list[int]:
        """Steps with a known loss."""
        return sorted(self._losses)

    def sha256(self) -> str:
        """Digest of weights, optimizer, losses of all steps, and metrics of the last evaluation."""
        state = unpack(read(next(directories(self.checkpoints))))
        saved = {name: state[name] for name in ("model", "optimizer", "ledger", "cursor")}
        return sha256([saved, sorted(self._losses.items()), self.metrics[-1]])


PLACES: dict[str, tuple[type, str, bool]] = {
    "before-reduce": (Exact, "reduce", False),
    "after-reduce": (Exact, "reduce", True),
    "before-optimizer": (OptimizerWrapper, "step", False),
    "after-optimizer": (OptimizerWrapper, "step", True),
    "before-save": (CheckpointManager, "save", False),
    "within-save": (Archive, "write_to", True),
    "before-rename": (WriteLease, "check", True),
}
"""Name → a method, and whether it dies after it; the payload is on its way to the disk ``within-save``."""


def _die_at(place: str, before: int) -> None:
    """Let this process be killed in the next call of the method after ``before`` ones."""
    owner, name, after = PLACES[place]
    total = getattr(owner, name)
    calls = itertools.count()

    def fatal(*args: object, **kwargs: object) -> object:
        is_due = next(calls) == before
        if is_due and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = total(*args, **kwargs)
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, fatal)


def _balance_by(seconds: Sequence[float]) -> None:
    """Draw the map of slices from these times of the ranks, which do not depend on the load of this machine."""
    rebalance = LoadBalancer.rebalance
    LoadBalancer.rebalance = lambda self, _: rebalance(self, seconds)  # type: ignore[method-assign]


def main() -> int:
    # Where a processor has no fp16 arithmetic torch imitates it, slowly.
    precision._cpu_has_fp16 = lambda: True
    rank = os.environ["RANK"]
    place, _, calls = os.environ["DIE_AT"].partition(":")
    if place and rank == "0":
        _die_at(place, int(calls))
    if "--balance" in sys.argv:
        _balance_by([1.0, 4.0])
    unlike = ["--threads", "2"] if rank == os.environ["UNLIKE_RANK"] else []
    return cli.main([*sys.argv[1:], *unlike])


if __name__ == "__main__":
    sys.exit(main())
