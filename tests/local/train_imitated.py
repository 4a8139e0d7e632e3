"""The trainer on a processor that says it has fp16 arithmetic; where it has none, torch imitates it, slowly."""

from __future__ import annotations

import sys

from ddp_trainer.train import precision
from ddp_trainer.train.cli import main

if __name__ == "__main__":
    precision._cpu_has_fp16 = lambda: True
    sys.exit(main(sys.argv[1:]))
