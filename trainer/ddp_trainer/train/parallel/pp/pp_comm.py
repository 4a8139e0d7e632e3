"""Timing of the point-to-point transfers of a pipeline schedule.

All schedules of torch wait for transfers between stages in one private function. :func:`time_transfers` replaces it
while a schedule runs, and restores it afterwards. On a torch without that function nothing is measured, and a test
fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.distributed.pipelining import schedules

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.train.observability.comm_wait import CommWaits

WAIT: Final = "_wait_batch_p2p"


@contextmanager
def time_transfers(waits: CommWaits) -> Iterator[None]:
    """Measure how long schedules wait for transfers inside this context."""
    inner: Any = getattr(schedules, WAIT, None)
    if inner is None:
        yield
        return

    def wait(work: Any) -> None:
        if not work:
            return
        with waits.during(Wait.STAGE):
            inner(work)

    setattr(schedules, WAIT, wait)
    try:
        yield
    finally:
        setattr(schedules, WAIT, inner)
