"""A plain script's loop over DDP in this process, which can be listened to and left alone again."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ddp_trainer.metrics.record import ddp_comm_sampler, recorder_factory
from ddp_trainer.metrics.record.autolog import AutoRecorder, Hooks
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.metrics.record.step_detector import StepDetector
from ddp_trainer.train.checkpoint.progress_file import ProgressFile
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.observability.step_timer import StepTimer
from tests.support.train_builders import ALONE, HERE


class AutologLoop:
    """One rank, 26,000 weights: a step is short, so what is added to it shows."""

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        store = torch.distributed.FileStore(str(directory / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        ddp_comm_sampler.track_ddp_models(torch)
        layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
        self._model = DistributedDataParallel(nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batches = self._cycle_batches()
        recorder = recorder_factory.open_rank_recorder(
            os.environ | {"DDP_METRICS_DIR": str(directory)}, measures_waits=False
        )
        assert isinstance(recorder, MmapRankRecorder)
        self.recorder = recorder
        self._hooks = Hooks(torch, StepDetector(AutoRecorder(torch, recorder)))

    def close(self) -> None:
        """Leave the process group."""
        torch.distributed.destroy_process_group()

    @staticmethod
    def _cycle_batches() -> Iterator[Any]:
        data = TensorDataset(torch.randn(640, 64), torch.randint(10, (640,)))
        loader = DataLoader(data, batch_size=32)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def run_plain(self, steps: int) -> float:
        """Return the processor seconds of a step without hooks."""
        self._model._set_ddp_runtime_logging_sample_rate(ddp_comm_sampler.STOCK_RATE)  # noqa: SLF001 - should a sample be open
        return self._run(steps)

    def run_with_autolog(self, steps: int) -> float:
        """Return the processor seconds of a step with hooks."""
        self._hooks.install()
        try:
            return self._run(steps)
        finally:
            self._hooks.uninstall()

    def _run(self, steps: int) -> float:
        begun = time.process_time()
        for inputs, labels in itertools.islice(self._batches, steps):
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(inputs), labels).backward()
            self._optimizer.step()
        return (time.process_time() - begun) / steps


class Ledger:
    """Time breakdown of a job, as the trainer keeps it: beside the checkpoints and in the metrics file."""

    def __init__(self, directory: Path, recorder: MmapRankRecorder) -> None:
        self._history = GoodputTracker(StepTimer(time.perf_counter))
        self._history.load(ProgressFile(directory, "bench"), recorder, ALONE, time.time(), HERE)
        self._history.begin_restore()
        self._history.end_restore(loaded=False)
        self._history.begin()
        self._step = 0

    def time_steps(self, calls: int) -> float:
        """Seconds that a step costs, with what is brought up to date ten times a second."""
        begun = time.perf_counter()
        for _ in range(calls):
            self._step += 1
            self._history.record_step(self._step, self._history.time_report())
        return (time.perf_counter() - begun) / calls

    def time_finish(self) -> float:
        """Seconds to bring the account up to date once, without a vote."""
        begun = time.perf_counter()
        self._history.finish()
        return time.perf_counter() - begun
