"""GPUs of this node, their driver and their errors in the kernel's log, read without torch or a CUDA context.

:func:`gpus` queries :mod:`ddp_preflight.nvml` in a subprocess.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ddp_preflight.nvml import NvmlReport
from ddp_preflight.schema import Gpu
from ddp_trainer.common import strict_json
from ddp_trainer.net.run_secret import open_without_waiting
from ddp_trainer.process.gpu_devices import LIBRARY
from ddp_trainer.process.process_tree import PROC, is_descendant

_TIMEOUT_SECONDS: Final = 20.0
_KERNEL_LOG: Final = Path("/dev/kmsg")
_LOG_BYTES: Final = 1 << 16
"""Larger than the longest record of the kernel's log. Each read returns one record."""
_MOST_RECORDS: Final = 100_000
_XID: Final = re.compile(r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
RECENT_SECONDS: Final = 7200.0
"""Age up to which an Xid counts, in seconds. An older one belongs to earlier users of the node."""


def gpus(library: str = LIBRARY, kernel_log: Path = _KERNEL_LOG, proc: Path = PROC) -> NvmlReport:
    """Return all GPUs. They are queried once, for at most 20 s, because a faulty driver may never answer."""
    cards = _query_nvml(library)
    logged = parse_xids(_records(kernel_log), time.monotonic())
    found = []
    for gpu in cards.gpus:
        xids = tuple(sorted({*gpu.xids, *logged.get(_place(gpu.bus_id), ())}))
        found.append(replace(gpu, xids=xids, processes=_external_pids(gpu, proc)))
    return replace(cards, gpus=tuple(found))


def _query_nvml(library: str) -> NvmlReport:
    command = [sys.executable, "-P", "-m", "ddp_preflight.nvml", library]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return NvmlReport(error=f"NVML does not answer within {_TIMEOUT_SECONDS:g} s")
    except OSError as error:
        return NvmlReport(error=f"NVML could not be queried: {error}")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return NvmlReport(
            error=f"the process that asks NVML ended with {done.returncode}: {''.join(last) or 'no message'}"
        )
    try:
        cards: NvmlReport = strict_json.parse(NvmlReport, strict_json.loads(done.stdout))
    except strict_json.DecodeError as error:
        return NvmlReport(error=f"NVML's answer is not understood: {error}")
    return cards if cards.gpus or cards.error else replace(cards, error="NVML lists no GPU")


def parse_xids(records: Iterable[str], now: float) -> dict[str, set[int]]:
    """Return the Xids of the last two hours by PCI address, from records of ``/dev/kmsg``.

    >>> line = "4,1,900000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    >>> sorted(parse_xids([line], 960.0))
    ['3b:00']
    """
    found: dict[str, set[int]] = {}
    for record in records:
        if (match := _XID.match(record)) and now - int(match[1]) / 1e6 <= RECENT_SECONDS:
            found.setdefault(_place(match[2]), set()).add(int(match[3]))
    return found


def _place(bus_id: str) -> str:
    """Return bus and device, the part that NVML and the kernel write alike: ``3b:00`` for ``00000000:3B:00.0`` and
    ``0000:3b:00``.
    """
    return ":".join(bus_id.partition(".")[0].lower().split(":")[-2:])


def _records(path: Path) -> list[str]:
    """Return the records of the kernel's log; empty if it is not readable, as in most pods."""
    records: list[bytes] = []
    with suppress(OSError), open(path, "rb", buffering=0, opener=open_without_waiting) as log:
        for _ in range(_MOST_RECORDS):
            with suppress(BrokenPipeError):  # records were overwritten before they were read
                record = log.read(_LOG_BYTES)
                if not record:
                    break
                records.append(record)
    return b"".join(records).decode(errors="replace").splitlines()


def _external_pids(gpu: Gpu, proc: Path) -> tuple[int, ...] | None:
    """Return the processes that this launcher has not started.

    In a running group that a node joins, the launchers of the members have started workers.
    """
    if gpu.processes is None:
        return None
    launcher = os.getppid()
    return tuple(pid for pid in gpu.processes if not is_descendant(pid, launcher, proc))
