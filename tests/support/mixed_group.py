"""Groups like ``cpu:gloo,cuda:nccl`` without a GPU: gloo, registered under another name, replaces NCCL.

Started as a program, it is rank 1 of two: silent in its first group until it gets a line, then lost to rank 0. In the
next group both add up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed import group as group_module
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stream_abort import STREAMS
from ddp_trainer.train.utils.errors import PeerLost
from tests.support.stream_model import ModelStreams

NAME = "carries_gpus"


def register() -> None:
    """Let torch know the backend; what it carries on GPUs is never used here."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _made, extended_api=True, devices=["cuda"])


def install() -> None:
    """Let groups of this process be mixed that hold offloaded tensors."""
    register()
    STREAMS[NAME] = ModelStreams()
    group_module.choose_backend = lambda *_: NAME  # type: ignore[assignment]


def _made(options: Any, _: Any) -> dist.ProcessGroupGloo:
    return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)


class Launcher:
    """The part of the channel to a launcher that a group uses."""

    is_called_off = False

    def __init__(self) -> None:
        self.call_off: Callable[[], None] = lambda: None

    def mark_joining(self, call_off: Callable[[], None]) -> None:
        """Keep the function that aborts the group."""
        self.call_off = call_off


def join(rank: int, port: int, generation: int, launcher: Launcher) -> Group:
    """The group of two that this process may outlive."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = Environment.from_env({**place, "DDP_GENERATION": str(generation)})
    control: Any = launcher
    return Group.join(env, torch.device("cpu"), 60.0, control=control, survives=True, offloads=True)


def main() -> int:
    install()
    first, second = (int(port) for port in sys.argv[1:])
    group = join(1, first, 1, Launcher())
    print("has joined", flush=True)
    sys.stdin.readline()
    try:
        group.sum(torch.ones(2))
    except PeerLost:
        group.free_device(agreed=False)
        group.abort()
        group = join(1, second, 2, Launcher())
        group.sum(torch.ones(2))
        group.close()
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
