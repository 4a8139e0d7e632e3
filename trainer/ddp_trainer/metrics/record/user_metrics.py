"""What only a script knows of its steps: loss, tokens, FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ddp_trainer.metrics.record.suppress_errors import warn_once
from ddp_trainer.process.recorder import RankRecorder

COPY_SECONDS: Final = 1.0
"""A number on a GPU is fetched no more often than this: Prometheus asks every 15 seconds."""


def fetch(loss: Any) -> tuple[Any, Any]:
    """A number in memory of the host that ``loss`` is being copied to, and what tells that it is there."""
    import torch  # noqa: PLC0415 - the script has imported it: it has a tensor

    number = torch.empty((), dtype=loss.dtype, pin_memory=True)
    number.copy_(loss.detach().reshape(()), non_blocking=True)
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return number, arrived


class Log:
    """Called once a step, or whenever there is news; made by :func:`ddp_trainer.metrics.attach.log`.

    A number may be Python's, NumPy's or a tensor of one element. A loss on a GPU is not waited for: it is copied behind
    the work that the device has, and told at a later call, when it is there.
    """

    def __init__(
        self,
        recorder: RankRecorder,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[Any], tuple[Any, Any]] = fetch,
    ) -> None:
        """``fetch`` begins to bring a number from a GPU."""
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
        """Tell what is given.

        Args:
            loss: of the last step; rank 0's is shown.
            learning_rate: that it used; known without being told where torch's optimizers are used.
            gradient_norm: of the whole gradient, before it was clipped.
            tokens: that this rank computed since the last call.
            flops: floating-point operations of the model that this rank did since the last call.
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
