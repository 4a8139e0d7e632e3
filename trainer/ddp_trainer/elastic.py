"""Elastic training for a plain training script, in about ten lines.

::

    from ddp_trainer import elastic

    with elastic.run(model, optimizer, dataset, global_batch=64, epochs=10, seed=0) as job:
        for step in job:
            for inputs, labels in step:
                step.backward(loss_of(model(inputs), labels))

:func:`run` is the entry point, see docs/library.md. Like ``ddp_trainer.__main__``, this module connects the packages
``train`` and ``metrics``, which do not import each other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.utils.locations import parse_location

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ddp_trainer.train.data.task import Samples
    from ddp_trainer.train.elastic_loop import ElasticLoop


def run(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Samples,
    *,
    global_batch: int = Config.global_batch,
    epochs: int = 1,
    max_steps: int | None = Config.max_steps,
    seed: int = Config.seed,
    batch_slices: int | None = Config.batch_slices,
    scheduler: LRScheduler | None = None,
    clip_norm: float | None = Config.clip_norm,
    name: str = "elastic",
    checkpoint_dir: Path | str | None = Config.checkpoint_dir,
    checkpoint_steps: int | None = Config.checkpoint_steps,
    checkpoint_seconds: float | None = Config.checkpoint_seconds,
    keep: int = Config.keep,
    csv: Path | str | None = Config.csv,
    tensorboard: Path | str | None = Config.tensorboard,
    wandb: str | None = Config.wandb,
    mlflow: str | None = Config.mlflow,
) -> ElasticLoop:
    """Return an elastic run of the caller's own loop; call it in every process of the worker group.

    Args:
        model: Plain model, not wrapped. It is moved to the device of this rank.
        optimizer: Optimizer of the model's weights.
        dataset: Map-style dataset, the same on every rank.
        global_batch: Samples per step over all ranks together.
        epochs: Passes over the dataset.
        max_steps: Global steps after which the run ends; None for no limit.
        seed: Seed of the sample order and of random draws. Initial weights are those of rank 0.
        batch_slices: Largest number of ranks of the run; derived by default.
        scheduler: Learning rate scheduler, stepped with the optimizer after every global step.
        clip_norm: Largest norm of the whole gradient; None for no clipping.
        name: Name of the run. A checkpoint of another name is refused.
        checkpoint_dir: Directory of checkpoints, or a URL such as ``s3://bucket/run`` (default:
            ``$DDP_CHECKPOINT_DIR``).
        checkpoint_steps: Steps between checkpoints; None for no such interval.
        checkpoint_seconds: Seconds between checkpoints; None for no such interval.
        keep: Number of checkpoints to keep.
        csv: File for the curves; None for no file.
        tensorboard: Directory of TensorBoard events; None for no events.
        wandb: Project of Weights & Biases; None to log nothing there.
        mlflow: Experiment of MLflow; None to log nothing there.

    Returns:
        A context manager to iterate over. After a stop request it saves and raises SystemExit with code 143 between two
        steps.

    Raises:
        BadConfig: If a value is invalid.
    """
    # Imported here, not at the top: they import torch.
    from ddp_trainer.metrics.attach import rank_recorder  # noqa: PLC0415
    from ddp_trainer.train.config.worker_env import Environment  # noqa: PLC0415
    from ddp_trainer.train.distributed.agent_channel import Control  # noqa: PLC0415
    from ddp_trainer.train.elastic_loop import ElasticLoop  # noqa: PLC0415

    config = Config(
        task=name,
        global_batch=global_batch,
        epochs=epochs,
        max_steps=max_steps,
        seed=seed,
        batch_slices=batch_slices,
        clip_norm=clip_norm,
        checkpoint_dir=None if checkpoint_dir is None else parse_location(str(checkpoint_dir)),
        checkpoint_steps=checkpoint_steps,
        checkpoint_seconds=checkpoint_seconds,
        keep=keep,
        csv=None if csv is None else Path(csv),
        tensorboard=None if tensorboard is None else Path(tensorboard),
        wandb=wandb,
        mlflow=mlflow,
    )
    env = Environment.from_env(os.environ)
    control = Control.from_env(os.environ)
    return ElasticLoop(
        model, optimizer, dataset, config, scheduler=scheduler, recorder=rank_recorder, env=env, control=control
    )
