"""Metrics and step times that a user's script records by itself."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.metrics.record.suppress_errors import warn_once
from ddp_trainer.metrics.storage.user_values import InvalidNameError, TooManyNamesError, UserValues, to_float
from ddp_trainer.process.recorder import RankRecorder

COPY_SECONDS: Final = 1.0
"""Least seconds between two copies of a value from a GPU. Prometheus scrapes every 15 seconds."""


def fetch(loss: Any) -> tuple[Any, Any]:
    """Start a copy of ``loss`` to host memory.

    Returns:
        The destination tensor, and a CUDA event that completes with the copy.
    """
    import torch  # noqa: PLC0415 - the script has imported it: it has a tensor

    number = torch.empty((), dtype=loss.dtype, pin_memory=True)
    number.copy_(loss.detach().reshape(()), non_blocking=True)
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return number, arrived


class Log:
    """Log of the script's values, called once per step or less; made by :func:`ddp_trainer.metrics.attach.log`.

    A value may be a Python or NumPy number, or a tensor with one element. A loss on a GPU does not block: it is copied
    behind the submitted work, and recorded at a later call, when the copy is complete.
    """

    def __init__(
        self,
        recorder: RankRecorder,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[Any], tuple[Any, Any]] = fetch,
        own: UserValues | None = None,
    ) -> None:
        """Create the log.

        Args:
            recorder: Recorder of this rank.
            clock: Returns monotonic seconds.
            fetch: Starts the copy of a value from a GPU.
            own: Store of the values with names of the script's own (default: they are not exported).
        """
        self._recorder = recorder
        self._fetch = fetch
        self._clock = clock
        self._own = UserValues(None) if own is None else own
        atexit.register(self._flush)
        self._copied_at = float("-inf")
        self._copy: tuple[Any, Any] | None = None

    def __call__(
        self,
        *,
        loss: Any = None,
        learning_rate: float | None = None,
        gradient_norm: float | None = None,
        tokens: float = 0,
        flops: float = 0,
        extra: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        """Record the given values.

        Args:
            loss: Loss of the last step; the metrics show that of rank 0. It is ignored where a recorder reports the
                loss, as in the reference trainer and under ``elastic.run``.
            learning_rate: Learning rate of the last step; read automatically from torch's optimizers.
            gradient_norm: Norm of the whole gradient before clipping.
            tokens: Tokens of this rank since the last call.
            flops: Floating-point operations of the model on this rank since the last call.
            extra: Further values by name, for names that are not Python names, such as ``val/acc``; at most 32 names
                per rank. ``kubectl ddp`` shows the value of the lowest rank that has reported the name.
            values: Further values, such as ``val_accuracy=0.93``. A tensor on a GPU is read at most once per second,
                as ``.item()`` does: the host then waits for the GPU.
        """
        try:
            if tokens or flops:
                self._recorder.work(float(tokens), float(flops))
            if learning_rate is not None:
                self._recorder.progress(learning_rate=to_float(learning_rate))
            if gradient_norm is not None:
                self._recorder.gradients(to_float(gradient_norm), None)
            if loss is not None:
                self._loss(loss)
        except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
            warn_once("log", error)
        if extra or values:
            self._put({**values, **(extra or {})})

    def _put(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            try:
                self._own.put(name, value)
            except InvalidNameError as error:  # a script may make a new name at every step: one warning for all
                warn_once("a value", error)
            except TooManyNamesError as error:
                warn_once("a further value", error)
            except Exception as error:  # noqa: BLE001 - as above
                warn_once(f"the value {name!r}", error)
        try:
            self._own.write_if_due()
        except Exception as error:  # noqa: BLE001 - as above
            warn_once("log", error)

    def _flush(self) -> None:
        with contextlib.suppress(Exception):
            self._own.flush()

    def _loss(self, loss: Any) -> None:
        if self._own.has_own_loss:
            return
        if not getattr(loss, "is_cuda", False):
            self._recorder.put(Metric.LOSS, to_float(loss))
            return
        if self._copy is not None:
            number, arrived = self._copy
            if arrived.query():
                self._recorder.put(Metric.LOSS, float(number))
                self._copy = None
        elif self._clock() - self._copied_at >= COPY_SECONDS:
            self._copied_at = self._clock()
            self._copy = self._fetch(loss)


_PHASES: Final = tuple(Phase)


class StepMeter:
    """Stopwatch of one loop, made by :func:`ddp_trainer.metrics.attach.meter`.

    ::

        meter = attach.meter()
        for epoch in range(epochs):
            for inputs, targets in loader:
                meter.end_phase("data_wait")                  # time since the last step was spent waiting for data
                loss = criterion(model(inputs), targets)
                meter.end_phase("forward")
                ...
                meter.step(samples=len(inputs), epoch=epoch)

    Time without a named phase counts as ``other``. On a GPU, phases measure when work was submitted, not when it was
    done.
    """

    def __init__(self, recorder: RankRecorder, clock: Callable[[], float] = time.perf_counter) -> None:
        self.recorder = recorder
        """Recorder for all other reports: ``progress``, ``evaluated``, ``checkpoint_saved`` and so on."""
        self._clock = clock
        self._step = recorder.steps if isinstance(recorder, MmapRankRecorder) else 0
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._mark = clock()

    def end_phase(self, phase: str) -> None:
        """End ``phase``: the time since the last mark belongs to it.

        Args:
            phase: A value of :class:`~ddp_trainer.common.time_classes.Phase`. An unknown name counts as ``other``,
                because an error here must not stop the training.
        """
        now = self._clock()
        self._seconds[phase if phase in self._seconds else Phase.OTHER] += now - self._mark
        self._mark = now

    def step(self, samples: int, epoch: int = 0) -> None:
        """End a step in which this rank computed ``samples``."""
        self.end_phase(Phase.OTHER)
        self._step += 1
        self.recorder.step(self._step, epoch, samples, *self._seconds.values())
        for phase in _PHASES:
            self._seconds[phase] = 0.0
