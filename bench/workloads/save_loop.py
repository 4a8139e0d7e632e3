"""A process that saves without a pause, and is killed during a save. Run as ``python -m bench.workloads.save_loop``.

It imports torch once and then, for every line ``PLACE GENERATION BYTES`` on stdin, forks a child that resumes from the
newest checkpoint at the place, a directory or the URL of an object store, and saves after every step. The child prints
``pid N``, ``saving STEP`` and ``durable STEP``, the last when the trainer's recorder gets the event. When it has died,
its parent prints ``gone``.

All numbers of the state are the number of the step, so a mixture of two steps is detected on loading.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch

from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.checkpoint.checkpoint_factory import open_checkpoints
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.manifest import Identity, Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import PIECE_BYTES
from ddp_trainer.train.checkpoint.write_lease import Claim
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.utils.locations import StorageUrl, parse_location

TENSORS = 8


class StdoutRecorder(NoopRankRecorder):
    """Recorder that prints the steps that became durable."""

    def checkpoint_saved(self, step: int, *_: float) -> None:  # type: ignore[override]
        """Print the step that the trainer reports as saved."""
        print_line(f"durable {step}")


def print_line(line: str) -> None:
    """Print one line in a single write."""
    os.write(1, f"{line}\n".encode())


def draft(step: int) -> Manifest:
    """Return the manifest of a step."""
    identity = Identity(task="saving", model="", data="", samples=1, seed=0, global_batch=1, order="")
    return Manifest(
        identity=identity,
        step=step,
        epoch=0,
        batch_slices=1,
        generation=0,
        run_id="saving",
        world_size=1,
        sha256="",
        size_bytes=0,
        written_at=time.time(),
        torch=torch.__version__,
    )


def a_saver(place: Path | StorageUrl, generation: int) -> CheckpointManager:
    """The trainer's own, asynchronous."""
    claim = Claim(str(generation), generation, generation, "saving", os.getpid())
    return CheckpointManager(
        Config(checkpoint_dir=place),
        open_checkpoints(place, claim, keep=2, alarm=lambda _: None),
        keeps_time=False,
        recorder=StdoutRecorder(),
        alarm=print_line,
        note=print_line,
        device=torch.device("cpu"),
    )


def save_until_killed(place: Path | StorageUrl, generation: int, size_bytes: int) -> NoReturn:
    """Save after every step until the process is killed."""
    tensors = [torch.zeros(size_bytes // 4 // TENSORS) for _ in range(TENSORS)]
    saver = a_saver(place, generation)
    saver.open()
    newest = saver.latest_checkpoint()
    saver.reserve(size_bytes + PIECE_BYTES)
    step = 0 if newest is None else newest.manifest.step
    print_line(f"pid {os.getpid()}")
    while True:
        step += 1
        for tensor in tensors:
            tensor.fill_(step)
        saver.poll()
        print_line(f"saving {step}")
        saver.save(step, lambda: {"tensors": tensors}, lambda step=step: draft(step))  # type: ignore[misc]


def main() -> None:
    """Serve lines until stdin ends."""
    # The child of a process with threads could wait for one that it does not have.
    torch.set_num_threads(1)
    for line in sys.stdin:
        place, generation, size_bytes = line.split()
        if not (child := os.fork()):
            save_until_killed(parse_location(place), int(generation), int(size_bytes))
        os.waitpid(child, 0)
        print_line("gone")


if __name__ == "__main__":
    main()
