"""What is looked at every so many steps, because it costs more than a store: waiting for gradients, a GPU's memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

from ddp_trainer.metrics.collect import gpu
from ddp_trainer.metrics.record.ddp_comm_sampler import Exposure

GPU_SECONDS: Final = 5.0
"""How old what is told of a GPU's memory may get."""
MOST_STEPS: Final = 100
"""Between two looks at a GPU so many steps are taken at most."""


class Sink(Protocol):
    """Where it goes."""

    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None:
        """See :class:`~ddp_trainer.process.recorder.RankRecorder`."""

    def gpu_memory(self, memory: gpu.Memory, before: gpu.Memory | None = None) -> None:
        """See :class:`~ddp_trainer.metrics.record.rank_recorder.BoardRankRecorder`."""


class Watch:
    """Called at the end of those steps that it asked for."""

    def __init__(self, sink: Sink, *, waits_are_told: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        """``waits_are_told`` where the loop knows what it spent in waiting for others, beside what DDP knows."""
        self.exposed_seconds = 0.0
        """In the step that was sampled last."""
        self._sink = sink
        self._waits_are_told = waits_are_told
        self._clock = clock
        self._exposure = Exposure()
        self._memory: gpu.Memory | None = None
        self._memory_at = float("-inf")
        self._due = self._exposure.wait

    @property
    def first(self) -> int:
        """The step at whose end it is to be called first."""
        return self._due

    def stop_comparing(self) -> None:
        """Ranks do different work, as stages of a pipeline do: how long each is busy tells no straggler."""
        self._waits_are_told = False

    def look(self, seconds: float, waited: float, steps: int) -> int:
        """A step has ended that took ``seconds``, ``waited`` of them, by the loop's own clock, for other ranks.

        ``steps`` were taken since the last look. Returns after how many more to look again.
        """
        self._look_at_gpu()
        self._due -= steps
        if self._due <= 0:
            # On a GPU the host's clock tells when it waited for the device, whatever that did meanwhile.
            is_measured = self._waits_are_told and not _has_gpu()
            sample = self._exposure.stepped(seconds, waited if is_measured else 0.0)
            self._due = self._exposure.wait
            if sample is not None:
                self.exposed_seconds = sample.exposed
                self._sink.sampled(sample.seconds - sample.exposed, sample.exposed)
        return max(1, min(self._due, MOST_STEPS) if _has_gpu() else self._due)

    def _look_at_gpu(self) -> None:
        if not _has_gpu() or self._clock() - self._memory_at < GPU_SECONDS:
            return
        memory = gpu.memory()
        if memory is not None:
            self._sink.gpu_memory(memory, self._memory)
            self._memory, self._memory_at = memory, self._clock()


def _has_gpu() -> bool:
    """Whether this process has a context on one."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
