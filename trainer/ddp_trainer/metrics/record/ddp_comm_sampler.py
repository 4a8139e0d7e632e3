"""Sampled waiting time for gradients, read from DDP's own timer.

Step times do not show a straggler, because all ranks of a job step together. The time that a rank waits for the others
does: the rank that waits least delays the rest. DDP times one iteration in a hundred by default, and its caller can
change that rate. :class:`CommSampler` makes DDP time a step, and reads the timer when the next step has begun. On a GPU
the timer's events are complete only then. It uses no collective, and the steps between samples run unchanged. The same
timer tells forward from backward.

The timer is private to torch. With a torch that has another timer, nothing is sampled, and a test fails.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

STOCK_RATE: Final = 100
"""DDP's default: it times one in this many iterations."""
MAX_INTERVAL_SECONDS: Final = 30.0
"""Maximum time between two samples if fewer than :data:`MAX_INTERVAL_STEPS` steps fit into it."""
MAX_INTERVAL_STEPS: Final = 100
"""Maximum number of steps between two samples, unless these take less than :data:`MIN_INTERVAL_SECONDS`."""
MIN_INTERVAL_SECONDS: Final = 1.0
"""Minimum time between two samples: reading DDP's timer costs as much as 100 short steps."""
FIRST_STEP: Final = 3
"""First step to sample. Earlier steps allocate buffers and rebuild buckets."""

_TIMES: Final = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)
models: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Every DistributedDataParallel created since :func:`track_ddp_models`."""


@dataclass(frozen=True, slots=True)
class _Timer:
    """DDP's timer of a model's last timed iteration, in seconds."""

    iteration: int
    exposed: float
    forward: float
    backward: float


_Timers = dict[int, _Timer]
"""Timer of each model, by the identity of the model."""


def track_ddp_models(torch: ModuleType | None) -> None:
    """Register every DDP model created from now on, by torch's hook into the registration of modules.

    Further calls have no effect.
    """
    global _is_tracking  # noqa: PLW0603 - torch's hook is global, too
    if torch is None or _is_tracking:
        return
    kind = torch.nn.parallel.DistributedDataParallel

    def on_registration(owner: Any, _name: str, _module: Any) -> None:
        if isinstance(owner, kind):
            models.add(owner)

    torch.nn.modules.module.register_module_module_registration_hook(on_registration)
    _is_tracking = True


_is_tracking = False


def interval(step_seconds: float) -> int:
    """Return the number of steps between two samples.

    >>> interval(0.001), interval(0.1), interval(1.0), interval(600.0)
    (1000, 100, 30, 2)
    """
    step = max(step_seconds, 1e-9)
    return int(min(max(MAX_INTERVAL_STEPS, MIN_INTERVAL_SECONDS / step), max(2.0, MAX_INTERVAL_SECONDS / step)))


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured times of one sampled step."""

    seconds: float
    exposed: float
    """Seconds of the step in which the rank only waited for others."""
    forward_share: float = 1.0
    """Share of the forward pass in forward and backward, as far as DDP has measured it; the loss is in backward."""


class CommSampler:
    """Sampler of the steps of one process. Call :meth:`end_step` only at the steps that :attr:`wait` announces."""

    def __init__(self) -> None:
        self.wait = FIRST_STEP
        """Steps until the next call of :meth:`end_step`."""
        self._interval = 2
        self._is_timing = False
        self._before: _Timers | None = None
        self._timed = (0.0, 0.0)

    def end_step(self, seconds: float, waited: float) -> Sample | None:
        """Record the end of a step.

        Args:
            seconds: Duration of the step.
            waited: Seconds that the loop itself waited for other ranks, in addition to DDP's waiting.

        Returns:
            The sampled step if its measurement is complete, else None.
        """
        if not models:
            self._rest(seconds)
            return Sample(seconds, min(waited, seconds)) if waited > 0 else None
        if not self._is_timing:
            _set_rate(1)
            self._is_timing, self._before, self.wait = True, None, 1
            return None
        if self._before is None:
            self._before, self._timed, self.wait = _read_timers(), (seconds, waited), 1
            return None
        sample = self._sample(_read_timers(), self._before, (seconds, waited))
        _set_rate(STOCK_RATE)
        self._is_timing = False
        self._rest(seconds)
        return sample

    def _rest(self, seconds: float) -> None:
        """Schedule the next sample. Samples are frequent at first, so that a young run has values."""
        self._interval = min(2 * self._interval, interval(seconds))
        self.wait = max(1, self._interval - 2)

    def _sample(self, now: _Timers, before: _Timers, this: tuple[float, float]) -> Sample | None:
        """Combine all models.

        A step with several backward passes counts the wait of the last pass, times their number.
        """
        passes = [
            (timer, timer.iteration - before[model].iteration)
            for model, timer in now.items()
            if model in before and timer.iteration > before[model].iteration
        ]
        if not passes:
            return None
        # The last pass that was timed belongs to the step before this one, unless a step has several.
        seconds, waited = self._timed if max(count for _, count in passes) == 1 else this
        exposed = sum(max(timer.exposed, 0.0) * count for timer, count in passes)
        forward = sum(timer.forward for timer, _ in passes)
        computed = forward + sum(timer.backward for timer, _ in passes)
        return Sample(seconds, min(exposed + waited, seconds), forward / computed if computed > 0 else 1.0)


def _set_rate(rate: int) -> None:
    for model in list(models):
        try:
            model.reducer._set_ddp_runtime_logging_sample_rate(rate)  # noqa: SLF001 - guarded
        except (AttributeError, RuntimeError, TypeError):
            models.discard(model)


def _read_timers() -> _Timers:
    """Return the timer of each model that has one."""
    timers: _Timers = {}
    for model in list(models):
        try:
            numbers = model.logger._get_ddp_logging_data().ints_map  # noqa: SLF001 - guarded
        except (AttributeError, RuntimeError, TypeError):
            models.discard(model)
            continue
        forward, backward, communication, overlap = (numbers.get(name, 0) / 1e9 for name in _TIMES)
        timers[id(model)] = _Timer(numbers.get("iteration", 0), communication - overlap, forward, backward)
    return timers
