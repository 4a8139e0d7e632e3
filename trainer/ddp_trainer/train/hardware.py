"""Which device this rank computes on, and with how many threads."""

from __future__ import annotations

import os

import torch

from ddp_trainer.train.config import Config, DeviceName
from ddp_trainer.train.environment import Environment
from ddp_trainer.train.errors import BadConfig
from ddp_trainer.train.options import Level


def choose_device(asked: DeviceName, env: Environment) -> torch.device:
    """The GPU of this local rank where there is one for each, else the CPU.

    Raises:
        BadConfig: CUDA was asked for, and there are fewer GPUs than local ranks.
    """
    if asked is DeviceName.CPU:
        return torch.device("cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= env.local_world_size:
        device = torch.device("cuda", env.local_rank)
        torch.cuda.set_device(device)
        return device
    if asked is DeviceName.CUDA:
        raise BadConfig(
            f"--device is cuda, but this machine has {gpus} GPUs for {env.local_world_size} ranks.",
            hint="Start at most one rank per GPU, or give --device cpu.",
        )
    return torch.device("cpu")


def limit_threads(env: Environment, config: Config | None = None) -> None:
    """Share the processor among local ranks: at torch's default each would use all of it, and all would wait.

    Sums that several threads share have other bits than those of one, so ``exact`` has the same number everywhere.
    """
    threads = None if config is None else config.threads
    if threads is None and config is not None and config.level is Level.EXACT:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    elif env.local_world_size > 1 and not env.threads_chosen:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // env.local_world_size))
