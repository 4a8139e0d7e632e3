"""Learns handwritten digits with ranks that this script spawns itself."""

import argparse
import os

import torch.multiprocessing as mp

from ddp_trainer.train import Config, run


def work(rank: int, ranks: int, epochs: int) -> None:
    """One rank; the launcher counts this whole script as one."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    # The launcher's line to its one worker, and where that one marks what it does, are not for several.
    for name in ("DDP_CHANNEL", "DDP_HEARTBEAT"):
        os.environ.pop(name, None)
    summary = run(Config(task="digits", epochs=epochs)).summary
    if rank == 0:
        print(f"accuracy {summary.metrics['accuracy']:.3f}, samples lost: {summary.samples_lost}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    mp.spawn(work, args=(given.ranks, given.epochs), nprocs=given.ranks)
