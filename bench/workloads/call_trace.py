"""Programs that count their own calls: the reference trainer in some of its steps, and a launcher while a worker dies.

``python -m bench.workloads.call_trace step FLAGS`` is a rank, ``... death FLAGS`` a launcher. Each writes the counts of
its traced sections to the folder ``TRACE``. C++ and files outside of ``ddp_trainer`` are not counted.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import ddp_trainer

PACKAGE: Final = f"{Path(ddp_trainer.__file__).parent}{os.sep}"
STEPS: Final = range(5, 31)
"""Several, because what happens at intervals of time falls into some of them only."""


class CallTrace:
    """Calls of Python functions of the package in one section of a program."""

    def __init__(self) -> None:
        self.calls = self.crossings = 0
        self.functions: set[tuple[str, str, int]] = set()
        self.files: set[str] = set()

    def begin(self) -> None:
        """Count the calls of this thread from now on."""
        sys.setprofile(self._count)

    def end(self, name: str) -> None:
        """Stop, and write the counts to a file of this name."""
        sys.setprofile(None)
        counts = {
            "calls": self.calls,
            "functions": len(self.functions),
            "files": sorted(self.files),
            "crossings": self.crossings,
        }
        Path(os.environ["TRACE"], f"{name}.json").write_text(json.dumps(counts))

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (file := _file_of(frame)) is None:
            return
        self.calls += 1
        self.functions.add((file, frame.f_code.co_name, frame.f_code.co_firstlineno))
        self.files.add(file)
        caller = frame.f_back
        while caller is not None and (before := _file_of(caller)) is None:
            caller = caller.f_back
        self.crossings += caller is not None and before != file


def _file_of(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    name = path.removeprefix(PACKAGE)
    return None if name == path else name


def trace_steps(argv: Sequence[str]) -> int:
    """Run the reference trainer, and trace :data:`STEPS`."""
    from ddp_trainer.metrics.attach import rank_recorder
    from ddp_trainer.train.cli import main
    from ddp_trainer.train.loop import goodput_tracker
    from ddp_trainer.train.trainer import Trainer

    # Steps of a busy machine take longer than this interval. All of them would then have what few have.
    goodput_tracker.ACCOUNT_SECONDS = math.inf  # type: ignore[misc] # a constant
    take_step: Callable[[Trainer], bool] = Trainer.train_step

    def train_step(trainer: Trainer) -> bool:
        step = trainer.state.step
        if step not in STEPS:
            return take_step(trainer)
        trace = CallTrace()
        trace.begin()
        try:
            return take_step(trainer)
        finally:
            trace.end(f"step-{os.environ['RANK']}-{step}")

    Trainer.train_step = train_step  # type: ignore[method-assign,assignment] # to trace it
    return main([*argv, "--max-steps", str(STEPS.stop + 1)], recorder=rank_recorder)


def trace_worker_exit(argv: Sequence[str]) -> int:
    """Run a launcher, and trace it from the first failed worker that it reaps until it has started workers again."""
    from ddp_trainer.__main__ import launch
    from ddp_trainer.launch.workers.children import Children
    from ddp_trainer.launch.workers.worker_group import Workers

    trace, reap, start = CallTrace(), Children.reap, Workers.start
    starts = 0

    def traced_reap(children: Children) -> None:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if starts and ended is not None and ended.si_status and not trace.calls:
            trace.begin()
        reap(children)

    def traced_start(workers: Workers, *place: Any) -> None:
        nonlocal starts
        start(workers, *place)
        starts += 1
        if trace.calls:
            trace.end("death")

    Children.reap, Workers.start = traced_reap, traced_start  # type: ignore[method-assign,assignment] # to trace them
    sys.argv[1:] = argv
    return launch()


if __name__ == "__main__":
    sys.exit({"step": trace_steps, "death": trace_worker_exit}[sys.argv[1]](sys.argv[2:]))
