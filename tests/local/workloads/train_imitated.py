"""The trainer on a processor that says it has fp16 arithmetic; where it has none, torch imitates it, slowly."""

from __future__ import annotations

import sys

from ddp_trainer.train.cli import main
from ddp_trainer.train.transforms import precision

if __name__ == "__main__":
    precision._cpu_has_fp16 = lambda: True
    sys.exit(main(sys.argv[1:]))
