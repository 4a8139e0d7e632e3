"""Ten lines that turn a plain training script into an elastic one.

::

    from ddp_trainer import elastic

    with elastic.run(model, optimizer, dataset, global_batch=64, epochs=10, seed=0) as job:
        for step in job:
            for inputs, labels in step:
                step.backward(loss_of(model(inputs), labels))

See docs/library.md. The rooms ``train`` and ``metrics`` meet here, as they do in ``ddp_trainer.__main__``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

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
    global_batch: int = 64,
    epochs: int = 1,
    max_steps: int | None = None,
    seed: int = 0,
    shards: int | None = None,
    scheduler: LRScheduler | None = None,
    clip_norm: float | None = None,
    name: str = "elastic",
    checkpoint_dir: Path | str | None = None,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float | None = 30.0,
    keep: int = 3,
) -> ElasticLoop:
    """An elastic run of the caller's own loop; call it in every process of the worker group.

    Args:
        model: plain, not wrapped; it is moved to the device of this rank.
        optimizer: of the model's weights.
        dataset: map-style; the same on every rank.
        global_batch: samples per step over all ranks together.
        epochs: passes over the dataset.
        max_steps: end after this many global steps.
        seed: decides order and random draws; weights are those of rank 0.
        shards: the most ranks that there can be; derived by default.
        scheduler: stepped with the optimizer, after every global step.
        clip_norm: largest norm of the whole gradient.
        name: identity; a checkpoint of another name is refused.
        checkpoint_dir: where checkpoints go; ``$DDP_CHECKPOINT_DIR`` by default.
        checkpoint_steps: save every so many steps.
        checkpoint_seconds: save every so many seconds.
        keep: checkpoints that are kept.

    Returns:
        A context manager to iterate over. Told to stop, it saves and raises SystemExit with 143 between two steps.

    Raises:
        BadConfig: a value that cannot be meant.
    """
    # torch and the rooms come in here: importing ddp_trainer must cost nothing.
    from ddp_trainer.metrics.attach import rank_recorder  # noqa: PLC0415
    from ddp_trainer.train.config.config import Config  # noqa: PLC0415
    from ddp_trainer.train.config.worker_env import Environment  # noqa: PLC0415
    from ddp_trainer.train.distributed.agent_channel import Control  # noqa: PLC0415
    from ddp_trainer.train.elastic_loop import ElasticLoop  # noqa: PLC0415

    config = Config(
        task=name,
        global_batch=global_batch,
        epochs=epochs,
        max_steps=max_steps,
        seed=seed,
        shards=shards,
        clip_norm=clip_norm,
        checkpoint_dir=None if checkpoint_dir is None else Path(checkpoint_dir),
        checkpoint_steps=checkpoint_steps,
        checkpoint_seconds=checkpoint_seconds,
        keep=keep,
    )
    env = Environment.from_environ(os.environ)
    control = Control.from_environ(os.environ)
    return ElasticLoop(
        model, optimizer, dataset, config, scheduler=scheduler, recorder=rank_recorder, env=env, control=control
    )
