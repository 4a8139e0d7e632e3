"""One process of one training loop, timed.

``python bench/scripts/loop.py LOOP WORKLOAD STEPS``, with torchrun's variables in the environment, prints one line of
JSON: the seconds of a step by the clock on the wall, and of the processor.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.workloads.overhead_workload import WORKLOADS, Clock

_WARMUP = {"tiny": 200, "gpt": 3}
_MODULES = dict.fromkeys(("bare", "ours", "ours_same_optimizer"), "bench.workloads.trainer_loops") | dict.fromkeys(
    ("bare_fsdp", "ours_fsdp", "ours_fsdp_same_optimizer"), "bench.workloads.fsdp_loops"
)
"""Names of our loops and of hand-written ones. All others belong to other libraries."""


def main() -> None:
    """Run the loop that the command line names."""
    name, workload, steps = sys.argv[1:]
    clock = Clock(_WARMUP[workload], int(steps))
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries think of each other is not measured here
        getattr(importlib.import_module(_MODULES.get(name, "bench.peers.peer_loops")), name)(WORKLOADS[workload], clock)
    print(json.dumps(clock.result()), flush=True)


if __name__ == "__main__":
    main()
