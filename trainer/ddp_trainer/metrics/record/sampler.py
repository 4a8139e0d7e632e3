"""Sampling of values that cost more than a store: waiting time for gradients and GPU memory.

:class:`Watch` decides which steps are sampled, and reports to a recorder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ddp_trainer.metrics.collect import gpu
from ddp_trainer.metrics.record.ddp_comm_sampler import CommSampler

GPU_SECONDS: Final = 5.0
"""Seconds between two readings of a GPU's memory."""
MOST_STEPS: Final = 100
"""Most steps between two checks of a GPU."""


class Sink(Protocol):
    """Receiver of the samples."""

    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None:
        """See :class:`~ddp_trainer.process.recorder.RankRecorder`."""

    def gpu_memory(self, memory: Mapping[str, float], before: Mapping[str, float]) -> None:
        """See :class:`~ddp_trainer.metrics.record.rank_recorder.MmapRankRecorder`."""


class Watch:
    """Sampler that runs at the end of the steps that it requests."""

    def __init__(self, sink: Sink, *, measures_waits: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the sampler.

        Args:
            sink: Receiver of the samples.
            measures_waits: True if the loop measures its waiting for other ranks beyond that in DDP.
            clock: Returns monotonic seconds.
        """
        self.exposed_seconds = 0.0
        """Seconds of waiting for gradients in the last sampled step."""
        self.forward_share = 1.0
        """Share of the forward pass in forward and backward of the last sampled step; 1 if it is unknown."""
        self._sink = sink
        self._measures_waits = measures_waits
        self._clock = clock
        self._exposure = CommSampler()
        self._memory: dict[str, float] = {}
        self._memory_at = float("-inf")
        self._due = self._exposure.wait

    @property
    def first(self) -> int:
        """First step at whose end to call :meth:`sample_if_due`."""
        return self._due

    def ignore_loop_waits(self) -> None:
        """Ignore the loop's waiting times. Ranks with different work, such as pipeline stages, are not comparable."""
        self._measures_waits = False

    def sample_if_due(self, seconds: float, waited: float, steps: int) -> int:
        """Sample at the end of a step, if due.

        Args:
            seconds: Duration of the step.
            waited: Seconds of it in which the rank waited for others, by the loop's own clock.
            steps: Steps since the last call.

        Returns:
            Number of steps until the next call.
        """
        self._sample_gpu_memory()
        self._due -= steps
        if self._due <= 0:
            # On a GPU, the host's clock measures waiting for the device, which may be computing.
            is_measured = self._measures_waits and not _has_gpu()
            sample = self._exposure.end_step(seconds, waited if is_measured else 0.0)
            self._due = self._exposure.wait
            if sample is not None:
                self.exposed_seconds, self.forward_share = sample.exposed, sample.forward_share
                self._sink.sampled(sample.seconds - sample.exposed, sample.exposed)
        return max(1, min(self._due, MOST_STEPS) if _has_gpu() else self._due)

    def _sample_gpu_memory(self) -> None:
        if not _has_gpu() or self._clock() - self._memory_at < GPU_SECONDS:
            return
        memory = gpu.memory()
        self._sink.gpu_memory(memory, self._memory)
        self._memory, self._memory_at = memory, self._clock()


def _has_gpu() -> bool:
    """Return True if this process has a CUDA context."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
