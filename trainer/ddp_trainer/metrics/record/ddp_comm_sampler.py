"""How much of a step went by in waiting for gradients, by the timer that DDP itself keeps.

Step times cannot tell a straggler: all ranks of a job step together. What a rank waited for the others can, and the
rank that waits least is the one that is waited for. DDP times one iteration in a hundred; which one is for its caller
to say, so a step is sampled by having DDP time it, and asked for when the next step has begun: on a GPU only then are
its events over. No collective, and nothing is done in the steps between.

The timer is private: where a torch has another one, nothing is sampled, and a test says so.
"""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

STOCK_RATE: Final = 100
"""One in so many iterations DDP times unasked."""
LEAST_SECONDS: Final = 30.0
"""Between two samples at most so much time goes by, which makes ten in five minutes …"""
MOST_STEPS: Final = 100
"""… or so many steps …"""
SHORT_SECONDS: Final = 1.0
"""… or, where those take less than that, so much time: to ask DDP costs as much as a hundred short steps do."""
FIRST_STEP: Final = 3
"""The steps before it are not like the others: buffers are made, buckets are built anew."""

models: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Every DistributedDataParallel that was made since :func:`follow`."""

_FOLLOWED: Final = "_ddp_followed"


def follow(torch: ModuleType | None) -> None:
    """From now on know every DDP model that is made; once is enough."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if torch is None or parallel is None:
        return
    kind = parallel.DistributedDataParallel
    made = kind.__init__
    if getattr(made, _FOLLOWED, False):
        return

    @functools.wraps(made)
    def make(model: Any, *args: Any, **kwargs: Any) -> None:
        made(model, *args, **kwargs)
        models.add(model)

    setattr(make, _FOLLOWED, True)
    kind.__init__ = make


@dataclass(frozen=True, slots=True)
class _Reading:
    iteration: int
    exposed_seconds: float


def interval(step_seconds: float) -> int:
    """Steps from one sample to the next.

    >>> interval(0.001), interval(0.1), interval(1.0), interval(600.0)
    (1000, 100, 30, 2)
    """
    step = max(step_seconds, 1e-9)
    return int(min(max(MOST_STEPS, SHORT_SECONDS / step), max(2.0, LEAST_SECONDS / step)))


@dataclass(frozen=True, slots=True)
class Sample:
    """One step, looked at closely."""

    seconds: float
    exposed: float
    """The part of them in which nothing was done but to wait for others."""


class Exposure:
    """Samples the steps of one process; :meth:`stepped` is called where a sample begins or ends, and nowhere else."""

    def __init__(self) -> None:
        self.wait = FIRST_STEP
        """In so many steps :meth:`stepped` is to be called again."""
        self._spread = 2
        self._is_timing = False
        self._before: dict[int, _Reading] | None = None
        self._timed = (0.0, 0.0)

    def stepped(self, seconds: float, waited: float) -> Sample | None:
        """A step has ended that took so long; the one that was sampled, if that is over now.

        ``waited`` is what the loop itself spent in waiting for other ranks, beside what DDP knows of. None where
        nothing of the kind is known.
        """
        if not models:
            self._rest(seconds)
            return Sample(seconds, min(waited, seconds)) if waited > 0 else None
        if not self._is_timing:
            _set_rate(1)
            self._is_timing, self._before, self.wait = True, None, 1
            return None
        if self._before is None:
            self._before, self._timed, self.wait = _readings(), (seconds, waited), 1
            return None
        sample = self._sample(_readings(), self._before, (seconds, waited))
        _set_rate(STOCK_RATE)
        self._is_timing = False
        self._rest(seconds)
        return sample

    def _rest(self, seconds: float) -> None:
        """Often at first, so that a young run has something to show."""
        self._spread = min(2 * self._spread, interval(seconds))
        self.wait = max(1, self._spread - 2)

    def _sample(
        self, now: dict[int, _Reading], before: dict[int, _Reading], this: tuple[float, float]
    ) -> Sample | None:
        """All models together; a step of several backward passes has waited as in the last, times their number."""
        passes = [(now[key], now[key].iteration - before[key].iteration) for key in now.keys() & before.keys()]
        passes = [(reading, count) for reading, count in passes if count > 0]
        if not passes:
            return None
        # The last pass that was timed belongs to the step before this one, unless a step has several.
        seconds, waited = self._timed if max(count for _, count in passes) == 1 else this
        exposed = sum(max(reading.exposed_seconds, 0.0) * count for reading, count in passes)
        return Sample(seconds, min(exposed + waited, seconds))


def _set_rate(rate: int) -> None:
    for model in list(models):
        try:
            model.reducer._set_ddp_runtime_logging_sample_rate(rate)  # noqa: SLF001 - guarded
        except (AttributeError, RuntimeError, TypeError):
            models.discard(model)


def _readings() -> dict[int, _Reading]:
    """What each model's timer says; of those that were timed, and can still be asked."""
    found = {}
    for model in list(models):
        try:
            numbers = model.logger._get_ddp_logging_data().ints_map  # noqa: SLF001 - guarded
        except (AttributeError, RuntimeError, TypeError):
            models.discard(model)
            continue
        iteration = numbers.get("iteration", 0)
        waited = numbers.get("backward_comm_time", 0) - numbers.get("backward_compute_comm_overlap_time", 0)
        found[id(model)] = _Reading(iteration, waited / 1e9)
    return found
