"""Kills a process that saves, at random moments, and looks what it left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ddp_trainer.train.checkpoint.checkpoint_factory import open_checkpoints
from ddp_trainer.train.checkpoint.checkpoint_files import unpack
from ddp_trainer.train.checkpoint.write_lease import Claim
from ddp_trainer.train.utils.locations import StorageUrl


@dataclass(slots=True)
class KillResults:
    """Results of several kills."""

    count: int = 0
    unloadable: int = 0
    """After which no checkpoint could be loaded, or one whose numbers are not those of its step."""
    older: int = 0
    """After which the newest one was older than the last that was reported as durable."""
    mid_save: int = 0
    """Number of kills between the beginning of a save and its end."""


def kill_at_random_times(
    place: Path | StorageUrl, *, count: int, size_bytes: int, chance: random.Random
) -> KillResults:
    """Kill a process ``count`` times while it saves, each time going on from what the one before left."""
    kills, durable = KillResults(), 0
    command = [sys.executable, "-m", "bench.workloads.save_loop"]
    with (
        tempfile.TemporaryDirectory(
            prefix="ddp-bench-"
        ) as temporary,  # of its own, so that we read from the store only
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "TMPDIR": temporary},
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        save_seconds = 0.0
        for generation in range(count):
            server.stdin.write(f"{place} {generation} {size_bytes}\n")
            pid, begun = 0, 0.0
            for line in server.stdout:
                word, number = line.split()
                if word == "pid":
                    pid = int(number)
                elif word == "saving" and not begun:
                    begun = time.monotonic()
                elif word == "durable":
                    durable = max(durable, int(number))
                    save_seconds = time.monotonic() - begun
                    break
            # Some time within the next two saves: the moment is what is varied, so there is nothing to wait for.
            time.sleep(chance.uniform(0, 2 * save_seconds))
            os.kill(pid, signal.SIGKILL)
            saving = 0
            for line in server.stdout:
                word, _, number = line.strip().partition(" ")
                if word == "gone":
                    break
                if word == "saving":
                    saving = int(number)
                else:
                    durable = max(durable, int(number))
            kills.mid_save += saving > durable
            kills.count += 1
            check_checkpoint(place, durable, kills)
        server.stdin.close()
    return kills


def check_checkpoint(place: Path | StorageUrl, durable: int, kills: KillResults) -> None:
    """Look at what a kill left, after ``durable`` was reported."""
    reader = open_checkpoints(place, Claim("reader", 0, 0, "", 0), keep=1, alarm=lambda _: None)
    newest = reader.latest_checkpoint(lambda _: None)
    if newest is None:
        kills.unloadable += 1
        return
    step = newest.manifest.step
    kills.older += step < durable
    kills.unloadable += not all(bool(torch.all(tensor == step)) for tensor in unpack(newest)["tensors"])
