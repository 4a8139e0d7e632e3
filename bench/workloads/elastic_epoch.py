"""An epoch shared by several worker groups of real processes, with an independent log of the samples that steps read.

The log is independent of samplers, batch plans and sample trackers. Every process writes a file of lines: ``R`` with
the ids that a pass of its training step was computed on, ``C`` with the number of steps committed when that step
counted. Passes before a ``C`` belong to that step. If a step was repeated, the last group's lines count.

Groups are forked from a server that has imported what they need, since an import takes longer than the epoch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final, Self

from bench.harness import CannotMeasure

SAMPLES: Final = 1000
SEED: Final = 3
GROUP_SECONDS: Final = 90
"""After which a group that has not ended never will: one takes seconds. Its ranks then say where they are."""
PARTING_SECONDS: Final = 10
"""Time for the other ranks to detect a failed rank."""
PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel hands to connections, one of which could take a port between its choice and its use."""


@dataclass(frozen=True, slots=True)
class ResizeSchedule:
    """An epoch and its worlds, as ``(ranks, steps)``. The last world runs to the end."""

    worlds: Sequence[tuple[int, int | None]]
    batch: Callable[[int], int]
    """Global batch of a world."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One worker group of the epoch, as each of its ranks knows it."""

    number: int
    world: int
    rank: int
    batch: int
    """Global."""
    stop: int | None
    """Steps that are done when it leaves; None where it reads the epoch to its end."""
    directory: Path
    """Directory of the users' checkpoints. The groups of an epoch share it."""


class Log:
    """Log of one process."""

    def __init__(self, directory: Path, stage: Stage) -> None:
        # Line-buffered: a killed process has written all it read.
        self._stream = (directory / f"{stage.number:02}-{stage.rank}").open("w", buffering=1)

    def read(self, ids: Iterable[int]) -> None:
        """A pass is computed on these samples."""
        self._stream.write(f"R {' '.join(map(str, ids))}\n")

    def record_commit(self, step: int) -> None:
        """The step counts; it is the ``step``-th of the epoch."""
        self._stream.write(f"C {step}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


Arm = Callable[[Stage, Log], None]
"""Program of a rank: a function at the top level of a module."""


def committed_samples(logs: Path) -> list[int]:
    """The ids of all steps that count, in whatever order."""
    steps: dict[int, tuple[str, list[int]]] = {}
    for file in sorted(logs.iterdir()):
        group = file.name.split("-")[0]
        read: list[int] = []
        for line in file.read_text().splitlines():
            kind, *numbers = line.split()
            if kind == "R":
                read += map(int, numbers)
                continue
            latest, ids = steps.get(int(numbers[0]), (group, []))
            steps[int(numbers[0])] = group, (ids if latest == group else []) + read
            read = []
    return [sample for _, ids in steps.values() for sample in ids]


def account(read: Sequence[int]) -> tuple[int, int]:
    """Samples of the epoch that no step was computed on, and computations beyond the first."""
    times = Counter(read)
    return SAMPLES - len(times), sum(times.values()) - len(times)


def server(modules: Sequence[str]) -> ForkServerContext:
    """Return the server from which groups are forked. It imports ``modules`` before the first fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, "bench.workloads.sample_loops"])
    return context


def read_epoch(
    context: ForkServerContext, arm: Arm, case: ResizeSchedule, directory: Path, *, dies: bool = False
) -> list[int]:
    """Let the groups read one after the other; the ids of all steps that count.

    ``dies``: a group does not leave when it is to, but its last rank is killed then, in the midst of the next step.

    Raises:
        CannotMeasure: a rank failed, for a reason that its output tells.
    """
    logs, state = directory / "logs", directory / "state"
    logs.mkdir(parents=True)
    state.mkdir()
    done = 0
    for number, (world, steps) in enumerate(case.worlds):
        done += steps or 0
        stages = [
            Stage(number, world, rank, case.batch(world), None if steps is None else done, state)
            for rank in range(world)
        ]
        codes = _run(context, arm, stages, logs)
        if any(codes) and not (dies and steps is not None and codes[-1] < 0):
            raise CannotMeasure(f"{arm.__name__} at {world} ranks ended with {codes}.")
    return committed_samples(logs)


def _run(context: ForkServerContext, arm: Arm, stages: Sequence[Stage], logs: Path) -> list[int]:
    port = _free_port()
    ranks = [context.Process(target=_rank, args=(arm, stage, logs, port)) for stage in stages]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + GROUP_SECONDS
    while (left := [rank.sentinel for rank in ranks if rank.exitcode is None]) and time.monotonic() < deadline:
        wait(left, timeout=deadline - time.monotonic())
        if any(rank.exitcode for rank in ranks):
            deadline = min(deadline, time.monotonic() + PARTING_SECONDS)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.join()
        rank.close()
    if None in codes:
        raise CannotMeasure(f"{arm.__name__} at {len(stages)} ranks did not end in time, but with {codes}.")
    return [code for code in codes if code is not None]


def _free_port() -> int:
    for port in random.sample(PORTS, k=len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise CannotMeasure(f"No port from {PORTS.start} to {PORTS.stop} is free.")


def _rank(arm: Arm, stage: Stage, logs: Path, port: int) -> None:
    # As a launcher sets them. Lightning starts no ranks itself if torchrun's run id is set.
    os.environ |= {
        "RANK": str(stage.rank),
        "LOCAL_RANK": str(stage.rank),
        "WORLD_SIZE": str(stage.world),
        "LOCAL_WORLD_SIZE": str(stage.world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "samples",
        # gloo would resolve the host's name, whose address changes when clusters start and stop on this machine.
        "GLOO_SOCKET_IFNAME": "lo",
        "DDP_GENERATION": str(stage.number),
        "DDP_FENCE": str(stage.number),
        "DDP_RUN_ID": "samples",
        "OMP_NUM_THREADS": "1",
    }
    faulthandler.dump_traceback_later(GROUP_SECONDS - PARTING_SECONDS)
    with Log(logs, stage) as log:
        arm(stage, log)
    # The measurement is over. Destroying a gloo process group that DDP still holds may block without end.
    os._exit(0)
