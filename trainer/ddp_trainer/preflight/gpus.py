"""GPUs by nvidia-smi, which the driver brings along: no CUDA context, no library of ours."""

from __future__ import annotations

import csv
import subprocess
from dataclasses import dataclass
from typing import Final

from ddp_trainer.preflight.facts import Gpu

_FIELDS: Final = (
    "index",
    "name",
    "memory.total",
    "driver_version",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "remapped_rows.pending",
)
_TIMEOUT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What nvidia-smi says."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    note: str = ""
    """One line that says why there are none."""
    has_nvidia_smi: bool = True


def gpus() -> Gpus:
    """Asked once, and for at most 20 s: a driver in trouble may never answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except FileNotFoundError:
        return Gpus(note="there is no nvidia-smi here, so GPUs were not looked at", has_nvidia_smi=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(note=f"nvidia-smi does not answer: {error}")
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return Gpus(note=f"nvidia-smi exited with {done.returncode}: {''.join(last) or 'no message'}")
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row]
    try:
        found = tuple(gpu_of(row) for row in rows)
    except (ValueError, IndexError):
        return Gpus(note=f"nvidia-smi says what is not understood: {done.stdout[:80]!r}")
    if not found:
        return Gpus(note="nvidia-smi lists no GPU")
    return Gpus(gpus=found, driver=rows[0][3])


def gpu_of(row: list[str]) -> Gpu:
    """One line of nvidia-smi; what a GPU does not have reads ``[N/A]``. Raises ValueError, IndexError."""
    return Gpu(
        index=int(row[0]),
        name=row[1],
        memory_mib=int(row[2]) if row[2].isdecimal() else 0,
        uncorrected_errors=int(row[4]) if row[4].isdecimal() else 0,
        needs_reset=any(cell.lower() in {"yes", "1"} for cell in row[5:7]),
    )
