"""Rank that trains a GPT until its first step is committed, and prints how long that took as a line of JSON.

``python first_step.py FOLDER MODEL WINDOW BATCH (compile|plain)``
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train import Config, load_task, run


class FirstStepRecorder(NoopRankRecorder):
    """Recorder that ends the process at the first committed step."""

    def step(self, *_: object) -> None:
        """Print the time since the start of the launcher, and the processor time of this rank and its children."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        seconds = {
            "wall": time.time() - float(os.environ["BENCH_STARTED"]),
            "cpu": sum(usage.ru_utime + usage.ru_stime for usage in used),
        }
        Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(seconds))
        os._exit(0)


if __name__ == "__main__":
    folder, model, window, batch, mode = sys.argv[1:]
    task = load_task("text", {"data": Path(folder), "model": model, "window": int(window)})
    run(Config(global_batch=int(batch), max_steps=2, compile=mode == "compile"), task, FirstStepRecorder())
