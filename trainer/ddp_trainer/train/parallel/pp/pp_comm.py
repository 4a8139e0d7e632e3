"""What a pipeline's schedule waits for, with a stopwatch.

torch's schedules wait for what stages send one another in one private function, through which all of them go. It is
replaced while a schedule runs, and put back; where a torch has no such function, nothing is measured there, and a test
says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.distributed.pipelining import schedules

from ddp_trainer.common.constants import Wait
from ddp_trainer.train.observability.comm_wait import CommWaits

WAIT: Final = "_wait_batch_p2p"


@contextmanager
def timed_transfers(waits: CommWaits) -> Iterator[None]:
    """Schedules that run in here tell how long they wait."""
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
