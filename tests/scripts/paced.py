"""The digits at a pace that leaves time for faults, however fast the machines are, until a file HURRY is there.

With ``--early-stop clock:1``, training ends after the epoch in which the file came.
"""

import os
import runpy
import sys
import time
from pathlib import Path

from ddp_workloads.digits import Digits

HURRY = Path(os.environ.get("HURRY", "never"))
PACE = float(os.environ.get("PACE", "0.0005"))


class Paced(Digits):
    def losses(self, model, batch):
        if not HURRY.exists():
            time.sleep(PACE * len(batch[0]))
        return super().losses(model, batch)

    def metrics(self, model, batch):
        found = super().metrics(model, batch)
        if "HURRY" not in os.environ:
            return found
        clock = 0.0 if HURRY.exists() else time.time()
        return {**found, "clock": found["loss"].double().new_tensor(clock * len(batch[0]))}


if __name__ == "__main__":
    sys.argv[1:1] = ["train", "--task", "paced:Paced"]
    runpy.run_module("ddp_trainer", run_name="__main__")
