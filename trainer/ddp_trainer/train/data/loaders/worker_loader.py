"""Samples read ahead by worker processes: torch's DataLoader, told shard by shard what to read.

The order of the requests is a pure function of the plan and of the shards that this rank owns, so the loader never
decides what comes next, and what it has read ahead means nothing until the step asks for it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.loaders.map_reader import ShardReader
from ddp_trainer.train.data.loaders.request import Fetched, Request
from ddp_trainer.train.data.loaders.step_batches import StepBatches
from ddp_trainer.train.utils.errors import DataWorkerLost, TrainError

_PR_SET_PDEATHSIG: Final = 1
_LOST: Final = "DataLoader worker"
"""How torch begins the RuntimeError that tells of a dead worker process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How samples are read ahead."""

    workers: int
    """Processes per rank."""
    prefetch: int
    """Shards that each process reads ahead."""
    pin: bool
    """Copy batches to page-locked memory, from which a GPU can fetch them without waiting."""


class WorkerFeed:
    """Reads ahead in processes of its own, which end with this one, however it ends."""

    def __init__(self, reader: ShardReader, plan: BatchPlan, shards: range, ahead: Ahead) -> None:
        self._plan = plan
        self._shards = shards
        self._step = 0
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._upcoming: Iterator[Fetched | TrainError] | None = None
        self._loader = DataLoader(
            _Answers(reader),
            batch_size=None,
            sampler=self,
            num_workers=ahead.workers,
            prefetch_factor=ahead.prefetch,
            persistent_workers=True,
            pin_memory=ahead.pin,
            collate_fn=_as_it_is,  # type: ignore[arg-type] # not a list, where batch_size is None
            worker_init_fn=_end_with_parent,
            # Without one of its own, the loader would draw from the generator that the run has keyed.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Request]:
        """What this rank will ask for, from the step under way to the end of the run."""
        portions = StepBatches(self._plan, self._shards)
        for step in range(self._step, self._plan.total_steps):
            for request in portions.of(step).own:
                # An array travels to the worker by value; a tensor would take a file descriptor each.
                yield request._replace(ids=request.ids.numpy())  # type: ignore[arg-type]

    def fetch(self, request: Request) -> Fetched:
        """Wait for what a worker has read.

        Raises:
            BadSample: one cannot be read, and is not to be skipped.
            DataWorkerLost: a worker process died.
        """
        try:
            if self._upcoming is None:
                self._begin(request.step)
            answer = next(self._upcoming)  # type: ignore[arg-type] # begun above
        except RuntimeError as err:
            if not str(err).startswith(_LOST):
                raise
            raise DataWorkerLost(
                f"{str(err).splitlines()[0].rstrip('. ')}.", hint="Give it more memory, or fewer --workers."
            ) from None
        if isinstance(answer, TrainError):
            raise answer
        return answer

    def _begin(self, step: int) -> None:
        self._step = step
        before = set(multiprocessing.active_children())
        self._upcoming = iter(self._loader)
        self._processes += [child for child in multiprocessing.active_children() if child not in before]

    def reassign(self, shards: range) -> None:
        """What was read ahead is for other shards: begin anew."""
        self._shards = shards
        self._upcoming = None

    def state_dict(self) -> dict[str, Any] | None:
        """Samples that have a state are not read by workers."""
        return None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """There is none."""

    def close(self) -> None:
        """End the worker processes."""
        self._upcoming = None
        del self._loader
        for process in self._processes:
            # They end by themselves when the loader goes; one that is stuck in reading ignores every kind word.
            process.join(timeout=1.0)
            if process.is_alive():
                process.kill()
                process.join()


class _Answers(Dataset[Any]):
    """What the loader takes for a data set: requests in, samples out, or the error that names why not."""

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader

    def __getitem__(self, request: Request) -> Fetched | TrainError:
        try:
            return self._reader.read(request._replace(ids=torch.from_numpy(request.ids)))
        except TrainError as err:
            # As a value: raised in a worker, it would arrive as a page of traceback in place of its sentence.
            return err


def _as_it_is(answer: Fetched | TrainError) -> Fetched | TrainError:
    return answer


def _end_with_parent(_worker: int) -> None:
    """In a worker process: leave signals to the rank, and end when it does.

    A fork holds the rank's sockets. Should it outlive the rank, peers would wait for one that is gone, and the next
    generation would find the port taken.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
