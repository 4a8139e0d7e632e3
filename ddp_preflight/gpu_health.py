"""Health check of some GPUs of this node, through NVML alone:
``python -m ddp_preflight.gpu_health DEVICES FILE``.

The launcher starts it before a node whose worker has failed joins again. It creates no CUDA context, so surviving
workers may keep theirs. ``FILE`` receives a JSON object with the ``findings`` of the checks ``gpu-health`` and
``gpu-links``. The exit code is 1 if one of them fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ddp_preflight.checks.gpu_checks import health_of, links_of
from ddp_preflight.gpus import gpus
from ddp_preflight.nvml import NvmlReport
from ddp_preflight.schema import Finding, Gpu, Status, max_status, named
from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.process.gpu_devices import MIG_PREFIX


def main(argv: Sequence[str]) -> int:
    """Check the GPUs and write the findings. Returns the exit code."""
    devices, file = argv
    node = os.environ.get(Env.POD_NAME) or socket.gethostname()
    found = check_gpus(node, gpus(), devices.split(","))
    with contextlib.suppress(OSError):  # a full disk is not a GPU failure
        Path(file).write_text(json.dumps({"findings": [asdict(finding) for finding in found]}))
    has_failed = max_status(finding.status for finding in found) is Status.FAIL
    return Exit.FAILURE if has_failed else Exit.SUCCESS


def check_gpus(node: str, cards: NvmlReport, devices: Sequence[str]) -> list[Finding]:
    """Return the findings of the given GPUs of a node.

    Args:
        node: Name of the node.
        cards: All GPUs of the node.
        devices: Indices or UUIDs. A MIG slice does not identify a GPU, so with one, all GPUs are checked.
    """
    if cards.error and cards.has_driver:
        hint = "look at nvidia-smi and the kernel's log"
        return named("gpu-health", [Finding(Status.FAIL, node, cards.error, hint)])
    chosen = [gpu for gpu in cards.gpus if any(_is_named(gpu, device) for device in devices)]
    return [*named("gpu-health", health_of(node, chosen)), *named("gpu-links", links_of(node, chosen))]


def _is_named(gpu: Gpu, device: str) -> bool:
    # CUDA accepts a prefix of a UUID.
    return device.startswith(MIG_PREFIX) or device == str(gpu.index) or gpu.uuid.startswith(device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
