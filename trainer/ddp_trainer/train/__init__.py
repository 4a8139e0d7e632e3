"""The reference trainer: elastic distributed training that neither loses nor repeats a sample.

As a command: ``python -m ddp_trainer train --task digits``. As a library::

    from ddp_trainer.train import Config, run

    outcome = run(Config(task="digits", epochs=3))
    print(outcome.summary.accuracy)

A custom task is any object with the members of :class:`Task`. Pass it to :func:`run`, or pass ``module:factory`` to the
command. Importing this package does not import torch.
"""

from ddp_trainer.train.api import run
from ddp_trainer.train.checkpoint.summary import Summary
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.task import Task, load_task, rowwise
from ddp_trainer.train.utils.errors import BadSample, TrainError

__all__ = ["BadSample", "Config", "Environment", "Summary", "Task", "TrainError", "load_task", "rowwise", "run"]
