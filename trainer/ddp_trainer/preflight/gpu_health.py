"""Health of some GPUs of this node, by NVML alone: ``python -m ddp_trainer.preflight.gpu_health DEVICES FILE``.

The launcher starts it before a node joins again whose worker has failed. It leaves a context on no GPU, so workers that
live may hold theirs. ``FILE`` gets an object of JSON with the ``findings`` of the checks ``gpu-health`` and
``gpu-links``; the exit code is 1 where one of them fails.
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

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.preflight.checks.gpu_checks import health_of, links_of
from ddp_trainer.preflight.gpus import gpus
from ddp_trainer.preflight.nvml import Cards
from ddp_trainer.preflight.result import Finding, Status, worst
from ddp_trainer.preflight.schema import Gpu
from ddp_trainer.process.gpu_devices import MIG_PREFIX


def main(argv: Sequence[str]) -> int:
    """Read the GPUs and write what is found; the exit code."""
    devices, file = argv
    node = os.environ.get(Env.POD_NAME) or socket.gethostname()
    found = findings_of(node, gpus(), devices.split(","))
    with contextlib.suppress(OSError):  # a full disk is no fault of a GPU
        Path(file).write_text(json.dumps({"findings": [asdict(finding) for finding in found]}))
    has_failed = worst(finding.status for finding in found) is Status.FAIL
    return Exit.FAILURE if has_failed else Exit.SUCCESS


def findings_of(node: str, cards: Cards, devices: Sequence[str]) -> list[Finding]:
    """Return what is found of the GPUs of a node that are named.

    Args:
        node: Name of the node.
        cards: All its GPUs.
        devices: Indices or UUIDs. A MIG slice names no GPU, so all of them count with one.
    """
    if cards.error and cards.has_driver:
        hint = "look at nvidia-smi and the kernel's log"
        return [Finding(check="gpu-health", status=Status.FAIL, node=node, message=cards.error, hint=hint)]
    named = [gpu for gpu in cards.gpus if any(_is_named(gpu, device) for device in devices)]
    return [*health_of(node, named), *links_of(node, named)]


def _is_named(gpu: Gpu, device: str) -> bool:
    # CUDA takes the beginning of a UUID for the whole of it.
    return device.startswith(MIG_PREFIX) or device == str(gpu.index) or gpu.uuid.startswith(device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
