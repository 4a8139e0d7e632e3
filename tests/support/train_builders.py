"""Small parts of a run for the unit tests beside this file."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CheckpointDirectory
from ddp_trainer.train.checkpoint.manifest import Identity, Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive, pack
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_plan import BatchPlan, cut
from ddp_trainer.train.distributed.group import Group

ALONE = Group(0, 1, "none", torch.device("cpu"))
HERE = Environment()

IDENTITY = Identity(
    task="lines", model="2 weights, 00000000", data="abc", samples=10, seed=0, global_batch=4, order="splitmix64/1"
)


def a_manifest(step: int, **changes: object) -> Manifest:
    values: dict[str, object] = {
        "identity": IDENTITY,
        "step": step,
        "epoch": 0,
        "batch_slices": 4,
        "generation": 0,
        "run_id": "run",
        "world_size": 2,
        "sha256": "",
        "size_bytes": 0,
        "written_at": 0.0,
        "torch": "2.13.0",
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type] # a builder


def sealed(raw: Mapping[str, object]) -> str:
    """Return a manifest of these values with the digest that fits them."""
    values = {name: value for name, value in raw.items() if name != "manifest_sha256"}
    sha256 = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return json.dumps({**values, "manifest_sha256": sha256})


def a_directory(
    path: Path, *, keep: int = 3, generation: int = 0, token: str = "a", best: str | None = None
) -> CheckpointDirectory:
    claim = WriteLease(path, generation=generation, fence=generation, run_id="run", token=token)
    directory = CheckpointDirectory(path, keep=keep, claim=claim, best=None if best is None else TargetMetric(best))
    directory.open()
    return directory


def a_state(step: int) -> Archive:
    return pack({"step": step, "weights": torch.arange(10.0)})


def slice_ids(plan: BatchPlan, step: int, slice_index: int) -> Tensor:
    """Return the sample ids of one batch slice of a global step."""
    batch = plan.batch(step)
    return batch[cut(len(batch), plan.batch_slices, slice_index)]


def write(directory: CheckpointDirectory, step: int, **changes: object) -> Manifest:
    return directory.write(a_manifest(step, **changes), a_state(step))


def latest(
    directory: CheckpointDirectory, warn: Callable[[str], object] = pytest.fail, *, verified: bool = True
) -> Checkpoint:
    """Return the newest checkpoint that can be read; there is one."""
    found = directory.latest_checkpoint(warn, verified=verified)
    assert found is not None
    return found


def lines_config(**changes: object) -> Config:
    """Return a configuration that fits :class:`Lines` in a few steps."""
    values: dict[str, object] = {"epochs": 1, "global_batch": 4, "warmup_steps": 0, "learning_rate": 0.1}
    return Config(**{**values, **changes})  # type: ignore[arg-type] # a builder


class Lines:
    """Fit ``y = 2 x`` on ten points: a task without optional parts."""

    name = "lines"

    def __init__(self, broken: Callable[[Tensor], None] | None = None) -> None:
        self._x = torch.arange(10.0).unsqueeze(1) / 10
        self._broken = broken

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_samples(self) -> Points:
        return Points(self._x, self._broken)

    def test_samples(self) -> Points:
        return Points(self._x[:3], None)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - 2 * batch).square().squeeze(1)

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self.losses(model, batch).sum()}


class NormalizedLines(Lines):
    """Running statistics, few test samples, and epochs whose last step leaves some ranks without samples."""

    name = "normalized lines"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def train_samples(self) -> Points:
        return Points(torch.arange(35.0).unsqueeze(1) / 35, None)

    def test_samples(self) -> Points:
        return Points(self._x[:2], None)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        # One sample has no variance to normalize by.
        return super().losses(model, batch if len(batch) > 1 else batch.repeat(2, 1))[: len(batch)]

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        statistics = {name: buffer.double().sum() * len(batch) for name, buffer in model.named_buffers()}
        return {**super().metrics(model, batch), **statistics}


class Points:
    """Points on a line."""

    def __init__(self, x: Tensor, broken: Callable[[Tensor], None] | None) -> None:
        self._x = x
        self._broken = broken

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Tensor:
        return self._x[index]

    def batch(self, ids: Tensor) -> Tensor:
        if self._broken is not None:
            self._broken(ids)
        return self._x[ids]


class Killed(BaseException):
    """Replaces SIGKILL: the trainer does not catch it."""


def kill_after(batches: int) -> Callable[[Tensor], None]:
    """Return a callback for :class:`Lines` that ends the run after some batches."""
    left = itertools.count(batches - 1, -1)

    def fetched(_: Tensor) -> None:
        if next(left) < 0:
            raise Killed

    return fetched
