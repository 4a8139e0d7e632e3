"""A worker that multiplies two matrices on its device, prints whether it was right, and waits to be killed."""

import json
import os
import sys
import time

IS_FORKED = "torch" in sys.modules

import torch  # noqa: E402 - whether it was there before is what counts


def main() -> None:
    """Multiply, print, wait."""
    product = torch.ones(256, 256, device=sys.argv[1]) @ torch.ones(256, 256, device=sys.argv[1])
    result = {
        "worker": os.getpid(),
        "generation": int(os.environ["DDP_GENERATION"]),
        "forked": IS_FORKED,
        "right": bool((product == 256).all()),
    }
    os.write(1, f"{json.dumps(result)}\n".encode())
    time.sleep(600)


main()
