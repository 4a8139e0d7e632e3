"""The trainer on a model of NCCL's rules, whose ranks die at random points of a step until enough of them have.

``KILLS`` ranks die, one in each group, at a point that ``SEED`` decides: when so many operations of a step have begun,
or some milliseconds later, in whatever the process is about then. Each process writes a log file in ``$LOG``:

- ``A generation``: its parts are being built for this group,
- ``S generation step`` and ``F sample``: a step begins, and these samples are read for it,
- ``V generation step loss operations``: it has heard that the step counts, and with what loss of all ranks.

``$LOG/kills`` has a line for each death. With ``PLAIN`` set, the same runs on plain gloo, without deaths.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from ddp_trainer.train import step as train_step
from ddp_trainer.train import trainer
from ddp_trainer.train.cli import main
from ddp_trainer.train.step import StepDecision
from tests.local.workloads.train_layouts import Numbers
from tests.support import stream_model

LATEST_SECONDS = 0.03
"""Longest time from the operation to the death."""


class Log:
    """Log of this process."""

    def __init__(self) -> None:
        self._file: TextIO | None = None

    def note(self, line: str) -> None:
        if self._file is None:  # made where it is used: a process may be forked
            # The kernel gives the number of a process that has ended to a later one.
            name = f"{os.getpid()}-{time.monotonic_ns()}.log"
            self._file = Path(os.environ["LOG"], name).open("x", buffering=1)  # noqa: SIM115
        self._file.write(f"{line}\n")


LOG = Log()


class Doom:
    """Point at which this process dies in its group, if any."""

    def __init__(self) -> None:
        self._generation = ""
        self.operations = 0
        self._steps = 0
        self._at: tuple[int, float] | None = None
        self._delay = 0.0

    def begin_step(self) -> None:
        if os.environ["DDP_GENERATION"] != self._generation:
            self._generation, self._steps = os.environ["DDP_GENERATION"], 0
            self._choose()
        self._steps += 1
        self.operations = 0

    def _choose(self) -> None:
        chance = random.Random(f"{os.environ['SEED']} {self._generation}")
        is_mine = chance.randrange(int(os.environ["WORLD_SIZE"])) == int(os.environ["RANK"])
        kills = Path(os.environ["LOG"], "kills")
        so_far = len(kills.read_text().splitlines()) if kills.exists() else 0
        share = chance.random()
        # A point that a step does not come to is its end, which is hit more often than others.
        at = chance.randint(1, 4), share * int(os.environ["OPERATIONS"])
        self._at = at if is_mine and so_far < int(os.environ["KILLS"]) else None
        self._delay = chance.choice((0.0, chance.random() * LATEST_SECONDS))

    def look(self, name: str) -> None:
        self.operations += 1
        if self._at is not None and self._steps == self._at[0] and self.operations > self._at[1]:
            self.inject_fault(name)

    def end_step(self) -> None:
        """A point that the step did not come to is its end."""
        if self._at is not None and self._steps == self._at[0]:
            self.inject_fault("the end of the step")

    def inject_fault(self, name: str) -> None:
        self._at = None
        line = f"{self._generation} {os.environ['RANK']} step {self._steps} {name} + {self._delay:.3f} s\n"
        with Path(os.environ["LOG"], "kills").open("a") as file:
            file.write(line)
        if self._delay:
            threading.Timer(self._delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


DOOM = Doom()


class EvenNumbers(Numbers):
    """Number of samples that fill whole steps."""

    rows = 64


def prepare() -> None:
    """Let steps and groups be noted."""
    begin, commit, build = trainer.begin_step, trainer.commit_step, trainer.build_components
    fetch = train_step.fetch_slice

    def begun(state: Any, parts: Any) -> Any:
        DOOM.begin_step()
        LOG.note(f"S {os.environ['DDP_GENERATION']} {state.step}")
        return begin(state, parts)

    def committed(state: Any, parts: Any, batch: Any, result: Any, **options: Any) -> StepDecision:
        decision: StepDecision = commit(state, parts, batch, result, **options)
        LOG.note(f"V {os.environ['DDP_GENERATION']} {batch.step} {decision.loss!r} {DOOM.operations}")
        DOOM.end_step()
        return decision

    def fetched(parts: Any, request: Any, result: Any) -> Any:
        if parts.group.counts:
            for number in request.ids.tolist():
                LOG.note(f"F {number}")
        return fetch(parts, request, result)

    def assembled(*args: Any) -> Any:
        LOG.note(f"A {os.environ['DDP_GENERATION']}")
        return build(*args)

    trainer.begin_step, trainer.commit_step = begun, committed
    trainer.build_components = assembled
    train_step.fetch_slice = fetched


if __name__ == "__main__":
    torch.set_num_threads(1)
    prepare()
    if "PLAIN" not in os.environ:
        stream_model.install(DOOM.look)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of streams may still stand in gloo
