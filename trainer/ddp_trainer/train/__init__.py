"""The reference trainer: elastic data-parallel training that loses and repeats no sample.

As a command: ``python -m ddp_trainer train --task digits``. As a library::

    from ddp_trainer.train import Config, run

    outcome = run(Config(task="digits", epochs=3))
    print(outcome.summary.accuracy)

A task of your own is any object with what :class:`Task` names; give it to :func:`run`, or ``module:factory`` to
the command. Importing this package does not import torch.
"""

from __future__ import annotations

from ddp_trainer.train.config import Config
from ddp_trainer.train.environment import Environment
from ddp_trainer.train.errors import BadSample, TrainError
from ddp_trainer.train.session import run
from ddp_trainer.train.summary import Summary
from ddp_trainer.train.task import Task, load_task, rowwise

__all__ = ["BadSample", "Config", "Environment", "Summary", "Task", "TrainError", "load_task", "rowwise", "run"]
