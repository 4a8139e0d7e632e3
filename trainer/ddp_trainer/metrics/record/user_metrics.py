"""Values that only a script has: loss, tokens, FLOPs. :class:`Log` records them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ddp_trainer.metrics.record.suppress_errors import warn_once
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
    ) -> None:
        """Create the log.

        Args:
            recorder: Recorder of this rank.
            clock: Returns monotonic seconds.
            fetch: Starts the copy of a value from a GPU.
        """
        self._recorder = recorder
        self._fetch = fetch
        self._clock = clock
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
    ) -> None:
        """Record the given values.

        Args:
            loss: Loss of the last step; the metrics show that of rank 0.
            learning_rate: Learning rate of the last step; read automatically from torch's optimizers.
            gradient_norm: Norm of the whole gradient before clipping.
            tokens: Tokens of this rank since the last call.
            flops: Floating-point operations of the model on this rank since the last call.
        """
        try:
            if tokens or flops:
                self._recorder.work(float(tokens), float(flops))
            if learning_rate is not None:
                self._recorder.progress(learning_rate=float(learning_rate))
            if gradient_norm is not None:
                self._recorder.gradients(float(gradient_norm), None)
            if loss is not None:
                self._loss(loss)
        except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
            warn_once("log", error)

    def _loss(self, loss: Any) -> None:
        if not getattr(loss, "is_cuda", False):
            self._recorder.progress(loss=float(loss))
            return
        if self._copy is not None:
            number, arrived = self._copy
            if arrived.query():
                self._recorder.progress(loss=float(number))
                self._copy = None
        elif self._clock() - self._copied_at >= COPY_SECONDS:
            self._copied_at = self._clock()
            self._copy = self._fetch(loss)
