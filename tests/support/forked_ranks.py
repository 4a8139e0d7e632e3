"""Ranks of a gloo group in processes that are forked from a test, and what each of them returns."""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from tests.support.ports import free_port

MOST_SECONDS = 120
LOST = "lost"
"""Result of a rank that ended without one."""


def run_ranks(count: int, body: Callable[[Group], Any]) -> list[Any]:
    """Call a function in so many ranks, and return the results in rank order.

    A rank leaves only after all have returned. An error is returned as its traceback.
    """
    port = free_port()
    done, all_done = os.pipe()
    children = []
    for rank in range(count):
        reader, writer = os.pipe()
        if pid := os.fork():
            os.close(writer)
            children.append((pid, reader))
            continue
        os.close(all_done)
        _be(rank, count, port, body, writer, done)
    results = []
    for _, reader in children:
        with os.fdopen(reader, "rb") as stream:
            content = stream.read()
        results.append(pickle.loads(content) if content else LOST)
    os.close(all_done)
    os.close(done)
    for pid, _ in children:
        os.waitpid(pid, 0)
    return results


def _be(rank: int, count: int, port: int, body: Callable[[Group], Any], writer: int, done: int) -> None:
    result: Any = None
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True, file=sys.__stderr__)
    try:
        torch.set_num_threads(1)  # a fork has no threads of OpenMP
        env = Environment(rank=rank, world_size=count, master_port=port, generation=1)
        result = body(Group.join(env, torch.device("cpu"), 60))
    except BaseException:  # noqa: BLE001 - a fork must not go on as the test
        result = traceback.format_exc()
    with os.fdopen(writer, "wb") as stream:
        stream.write(pickle.dumps(result))
    os.read(done, 1)
    os._exit(0)
