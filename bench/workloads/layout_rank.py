"""One rank of a layout for ``bench plan``: the unchanged trainer, and the peak memory of tensors in its steps.

``DDP_BENCH_BYTES`` names the output directory, ``DDP_BENCH_STEPS`` the number of steps. The first step is not
measured: it loads code and creates the optimizer's state.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.drivers.process_memory import PeakResidentMemory
from ddp_trainer.train.cli import main
from ddp_trainer.train.trainer import Trainer


def observe(file: Path, steps: int) -> None:
    """Write down the bytes when so many steps are done."""
    take = Trainer.train_step
    taken = 0
    resident: PeakResidentMemory | None = None

    def observed(self: Trainer) -> bool:
        nonlocal taken, resident
        if taken == 1:
            resident = PeakResidentMemory()
        stops = take(self)
        taken += 1
        if taken == steps and resident is not None:
            file.write_text(str(resident.peak()))
        return stops

    Trainer.train_step = observed  # type: ignore[method-assign] # of this process alone


if __name__ == "__main__":
    observe(Path(os.environ["DDP_BENCH_BYTES"]) / os.environ["RANK"], int(os.environ["DDP_BENCH_STEPS"]))
    sys.exit(main(sys.argv[1:]))
