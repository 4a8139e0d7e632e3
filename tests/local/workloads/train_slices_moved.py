"""The trainer, whose rank 1 is slow and, in the first group, killed when slices move to rank 0 after a step."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from ddp_trainer.train.cli import main
from ddp_trainer.train.parallel.load_balancer import LoadBalancer

_whole = LoadBalancer.rebalance


def fatal(self: LoadBalancer, _: Sequence[float]) -> list[range] | None:
    """Draw the map from times that do not depend on the load of this machine."""
    batch_slices = _whole(self, [1.0, 4.0])
    if batch_slices is not None and os.environ["RANK"] == "1" and os.environ.get("DDP_GENERATION") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return batch_slices


if __name__ == "__main__":
    LoadBalancer.rebalance = fatal  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
