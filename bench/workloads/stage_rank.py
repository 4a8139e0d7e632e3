"""One stage for ``bench bubble``: the unchanged trainer, with the computing and waiting time of each step.

``DDP_BENCH_STAGES`` names the output directory. The times are those that the metrics receive.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ddp_trainer.common.time_classes import Phase, Wait
from ddp_trainer.train.cli import main
from ddp_trainer.train.observability.step_timer import StepTimer


def observe(steps: list[tuple[float, float]]) -> None:
    """Append the reported seconds of computing and of waiting of each step."""
    report, waited = StepTimer.report, StepTimer.record_wait
    waits: list[float] = []

    def record_wait(self: StepTimer, wait: Wait, seconds: float) -> None:
        waited(self, wait, seconds)
        if wait is Wait.STAGE:
            waits.append(seconds)

    def reported(self: StepTimer, *args: Any, **options: Any) -> float:
        steps.append((self.phase_seconds(Phase.BACKWARD), sum(waits)))
        waits.clear()
        return report(self, *args, **options)

    StepTimer.report, StepTimer.record_wait = reported, record_wait  # type: ignore[method-assign] # of this process alone


if __name__ == "__main__":
    seen: list[tuple[float, float]] = []
    observe(seen)
    code = main(sys.argv[1:])
    (Path(os.environ["DDP_BENCH_STAGES"]) / os.environ["RANK"]).write_text(json.dumps(seen))
    sys.exit(code)
