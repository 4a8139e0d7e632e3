"""``python -m ddp_collectives``: ``ddp-launch collectives`` where the entry point is not installed."""

from __future__ import annotations

import sys

from ddp_collectives.cli import main

sys.exit(main(sys.argv[1:]))
