"""Reading ahead in loader workers: torch's DataLoader with requests for slices as its sampler.

The order of the requests is a pure function of the batch plan and of the slices that this rank owns. The loader does
not choose the samples, and samples that it has read ahead have no effect until a step fetches them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

from ddp_trainer.train.data.batch_plan import BatchPlan, StepBatches
from ddp_trainer.train.data.loaders.base import Feed, FetchResult, Request
from ddp_trainer.train.data.loaders.map_reader import SliceReader
from ddp_trainer.train.utils.errors import LoaderWorkerLost, TrainError

_PR_SET_PDEATHSIG: Final = 1
_LOST: Final = "DataLoader worker"
"""Start of the message of torch's RuntimeError for a dead loader worker."""


class LoaderWorkerFeed(Feed):
    """Feed that reads ahead in loader workers. They end when this process ends, even if it is killed."""

    def __init__(
        self,
        reader: SliceReader,
        plan: BatchPlan,
        batch_slices: range,
        *,
        loader_workers: int,
        prefetch: int,
        pin: bool,
    ) -> None:
        """Create the feed; the first :meth:`fetch` starts the processes.

        Args:
            reader: Reads the samples of a request, in the loader workers.
            plan: Batches of the run.
            batch_slices: Batch slices that this rank owns.
            loader_workers: Loader workers of this rank.
            prefetch: Batch slices that each loader worker reads ahead.
            pin: Copy batches to page-locked memory, which makes copies to a GPU asynchronous.
        """
        self._plan = plan
        self._batch_slices = batch_slices
        self._step = 0
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._upcoming: Iterator[FetchResult | TrainError] | None = None
        self._loader = DataLoader(
            _RequestDataset(reader),
            batch_size=None,
            sampler=self,
            num_workers=loader_workers,
            prefetch_factor=prefetch,
            persistent_workers=True,
            pin_memory=pin,
            collate_fn=_as_it_is,  # type: ignore[arg-type] # not a list if batch_size is None
            worker_init_fn=_end_with_parent,
            # By default the loader draws from the global generator, which the run seeds by key.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests of this rank from the current step to the end of the run."""
        portions = StepBatches(self._plan, self._batch_slices)
        for step in range(self._step, self._plan.total_steps):
            for request in portions.of(step).own:
                # An array is sent to the loader worker by value; each tensor would need a file descriptor.
                yield request._replace(ids=request.ids.numpy())  # type: ignore[arg-type]

    def fetch(self, request: Request) -> FetchResult:
        """Wait for a loader worker to read the request, and return its samples.

        Raises:
            BadSample: A sample cannot be read, and the reader does not skip it.
            LoaderWorkerLost: A loader worker died.
        """
        try:
            if self._upcoming is None:
                self._begin(request.step)
            answer = next(self._upcoming)  # type: ignore[arg-type] # set above
        except RuntimeError as err:
            if not str(err).startswith(_LOST):
                raise
            raise LoaderWorkerLost(
                f"{str(err).splitlines()[0].rstrip('. ')}.", hint="Give it more memory, or fewer --loader-workers."
            ) from None
        if isinstance(answer, TrainError):
            raise answer
        return answer

    def _begin(self, step: int) -> None:
        self._step = step
        before = set(multiprocessing.active_children())
        self._upcoming = iter(self._loader)
        self._processes += [child for child in multiprocessing.active_children() if child not in before]

    def assign_slices(self, batch_slices: range) -> None:
        """Change the slices that this rank owns, and discard what was read ahead for others."""
        self._batch_slices = batch_slices
        self._upcoming = None

    def close(self) -> None:
        """End the loader workers."""
        self._upcoming = None
        del self._loader
        for process in self._processes:
            # Loader workers end when the loader is deleted, but one that hangs in a read has to be killed.
            process.join(timeout=1.0)
            if process.is_alive():
                process.kill()
                process.join()


class _RequestDataset(Dataset[Any]):
    """Data set for the loader: maps a request to its samples, or to the error that reading them raised."""

    def __init__(self, reader: SliceReader) -> None:
        self._reader = reader

    def __getitem__(self, request: Request) -> FetchResult | TrainError:
        try:
            return self._reader.read(request._replace(ids=torch.from_numpy(request.ids)))
        except TrainError as err:
            # Return it: torch replaces the message of an error raised in a worker by a traceback.
            return err


def _as_it_is(answer: FetchResult | TrainError) -> FetchResult | TrainError:
    return answer


def _end_with_parent(_worker: int) -> None:
    """Ignore signals in a loader worker, and end it when the rank ends.

    A forked process holds the sockets of the rank. If it outlived the rank, peers would wait for the lost rank, and the
    next generation would find the port in use.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
