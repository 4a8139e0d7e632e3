"""Print hardware and versions as one line of JSON: ``python -m bench.gpu_checks.probe``. CUDA may end the process."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any, Final

SMI_SECONDS: Final = 20.0


def query_nvidia_smi(fields: str) -> list[str]:
    """Return the values of these fields of the first GPU, by nvidia-smi; empty where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines()
    return [cell.strip() for cell in lines[0].split(",")] if done.returncode == 0 and lines else []


def probe_hardware() -> dict[str, Any]:
    """Return hardware and versions; where CUDA cannot be used ``gpu`` is empty, and ``trouble`` is the reason."""
    found: dict[str, Any] = {
        "gpu": "",
        "trouble": "",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    try:
        import torch
    except ImportError as error:
        return found | {"trouble": f"torch is not installed: {error}"}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl_version()}
    try:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
    except (RuntimeError, AssertionError) as error:
        return found | {"trouble": str(error).splitlines()[0]}
    return found | {
        "gpu": properties.name,
        "count": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": "".join(query_nvidia_smi("driver_version")[:1]),
    }


def nccl_version() -> str:
    """Return the version of the NCCL that torch was built with, or an empty text."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe_hardware()) + "\n")
