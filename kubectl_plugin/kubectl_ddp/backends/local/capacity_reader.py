"""Capacity of this machine in the form of cluster objects: a node, and a pod that requests what programs use."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

from kubectl_ddp.capacity import CapacityObjects
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.values.pod import GPU_PRODUCT

MEMORY: Final = Path("/proc/meminfo")
PODS: Final = "110"
SECONDS: Final = 10.0
"""Timeout of nvidia-smi, which may not answer at all if a GPU is faulty."""


def read() -> CapacityObjects:
    """Return this machine as a node, and one pod with what is in use.

    GPUs with compute processes count as used; CPU cores are shared.
    """
    name = socket.gethostname()
    total, available = _memory()
    gpus, busy = _gpus()
    allocatable = {"cpu": str(len(os.sched_getaffinity(0))), "memory": str(total), "pods": PODS}
    labels = {"kubernetes.io/hostname": name}
    if gpus:
        allocatable[GPU] = str(len(gpus))
        labels[GPU_PRODUCT] = next(iter(gpus.values())).replace(" ", "-")
    node: Object = {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    taken = {"memory": str(total - available)} | ({GPU: str(busy)} if busy else {})
    programs: Object = {
        "metadata": {"name": "programs"},
        "spec": {"nodeName": name, "containers": [{"name": "programs", "resources": {"requests": taken}}]},
    }
    return CapacityObjects(nodes=[node], pods=[programs])


def _memory() -> tuple[int, int]:
    """Return the total and the available memory in bytes."""
    meminfo = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
    total, available = (int(meminfo[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, available


def _gpus() -> tuple[dict[str, str], int]:
    """Return the GPU names by id, and the number of GPUs with compute processes; empty without nvidia-smi."""
    lines = _query_nvidia_smi("--query-gpu=uuid,name")
    gpus = {uuid.strip(): name.strip() for uuid, _, name in (line.partition(",") for line in lines)}
    busy = {line.strip() for line in _query_nvidia_smi("--query-compute-apps=gpu_uuid")} if gpus else set()
    return gpus, len(busy & gpus.keys())


def _query_nvidia_smi(query: str) -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
