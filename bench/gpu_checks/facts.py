"""A: driver, versions, compiler, limits, and the symbols that the launcher needs; each nvidia-smi field by itself."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from typing import Final

from bench.gpu_checks.check_report import Bench, NotSupported
from bench.gpu_checks.check_runner import ROOT, environment
from bench.gpu_checks.launches import PYTHON
from bench.gpu_checks.probe import nccl_version, query_nvidia_smi

FIELDS: Final = (
    *("index", "name", "uuid", "memory.total", "memory.used", "driver_version", "pcie.link.gen.current"),
    *("pcie.link.width.current", "clocks_event_reasons.active", "ecc.errors.uncorrected.volatile.total"),
    *("retired_pages.pending", "remapped_rows.pending", "remapped_rows.failure", "fabric.state", "mig.mode.current"),
)
LEAST_MEMLOCK_BYTES: Final = 1 << 30
"""Below that RDMA fails; ``unlimited`` is usual."""
PREFLIGHT_SECONDS: Final = 20.0


def run(bench: Bench) -> None:
    """Look at what presets, ``--compile`` and the hang watch presume."""
    import torch

    found = bench.findings
    if bench.is_gpu:
        if shutil.which("nvidia-smi") is None:
            found.mark_unsupported("nvidia-smi", "it is not installed")
        for field, answer in _query_fields().items():
            if not answer or answer.startswith("["):
                found.mark_unsupported(f"nvidia-smi {field}", answer or "it is not known here")
        found.require(f"torch {torch.__version__} has NCCL ({nccl_version()})", bool(nccl_version()))
    recorders = [name for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json") if has_c10d(name)]
    found.at_least(f"functions that dump a flight recorder ({', '.join(recorders)})", len(recorders), 1)
    compiler = next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None)
    found.add("c_compilers_count", float(compiler is not None))
    if compiler is None:
        found.mark_unsupported("torch.compile", "Triton needs a C compiler, and none is installed")
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if 0 <= memlock < LEAST_MEMLOCK_BYTES:
        found.mark_unsupported("RDMA", f"a process may lock {memlock} bytes of memory (ulimit -l)")
    _preflight(bench)


def _query_fields() -> dict[str, str]:
    """Each field; asked for by itself only where one of them spoils the answer, since each call takes its time."""
    together = query_nvidia_smi(",".join(FIELDS))
    if len(together) == len(FIELDS):
        return dict(zip(FIELDS, together, strict=True))
    return {field: "".join(query_nvidia_smi(field)[:1]) for field in FIELDS}


def has_c10d(name: str) -> bool:
    """Whether torch's distributed module has this function."""
    from torch._C import _distributed_c10d

    return hasattr(_distributed_c10d, name)


def _preflight(bench: Bench) -> None:
    """``ddp-launch preflight`` sees the GPUs that are here."""
    command = [PYTHON, "-m", "ddp_trainer", "preflight", "--standalone", "-o", "json"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=bench.bounded(PREFLIGHT_SECONDS),
        check=False,
    )
    try:
        [node] = json.loads(done.stdout)["nodes"]
    except (ValueError, KeyError) as error:
        raise NotSupported(f"preflight printed no report: {done.stderr[-200:]}") from error
    if bench.is_gpu:
        bench.findings.at_least("GPUs that preflight reports", len(node["gpus"]), 1)
        unread = sorted({name for gpu in node["gpus"] for name in gpu["unread"] if not name.startswith("fabric")})
        bench.findings.at_most(f"fields that NVML does not answer ({', '.join(unread)})", len(unread), 0)
    bench.findings.require("preflight ends with 0 or 1", done.returncode in {0, 1})
