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

from bench._workload import WORKLOADS, Clock

_WARMUP = {"tiny": 200, "gpt": 3}


def main() -> None:
    """Run the loop that the command line names."""
    name, workload, steps = sys.argv[1:]
    module = "bench._our_loops" if name in {"bare", "ours", "ours_same_optimizer"} else "bench._peer_loops"
    clock = Clock(_WARMUP[workload], int(steps))
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries think of each other is not measured here
        getattr(importlib.import_module(module), name)(WORKLOADS[workload], clock)
    print(json.dumps(clock.result()), flush=True)


if __name__ == "__main__":
    main()
