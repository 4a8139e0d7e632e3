"""Faults of GPUs and refusals of NCCL, read from messages of CUDA, the driver, torch and NCCL.

:func:`fault_in` and :func:`nccl_config_error` are the entry points. The launcher uses them to name why a worker ended,
the trainer to tell a broken GPU from a lost peer, and ``kubectl ddp why`` to suggest a fix. Standard library only.

Sources of the wording: ``cudaGetErrorString`` in the CUDA Runtime API reference (Error handling);
``c10/cuda/CUDAFunctions.cpp`` and ``ProcessGroupNCCL.cpp`` of torch; ``src/init.cc``, ``src/plugin/net.cc`` and
``src/include/checks.h`` of NCCL 2.30; NVIDIA's catalogue of Xid errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FaultKind(StrEnum):
    """Kinds of GPU faults that need different fixes."""

    ECC = "ecc"
    NVLINK = "nvlink"
    LOST = "lost"
    """The GPU does not answer, or has disappeared."""
    FABRIC = "fabric"
    """The switch fabric between the GPUs of the node is not configured."""
    DRIVER = "driver"
    """The driver and the CUDA of torch do not work together."""
    ABSENT = "absent"
    """The machine has no NVIDIA driver."""
    MISSING = "missing"
    """The process sees fewer GPUs than its index needs."""
    ACCESS = "access"
    """A kernel accessed memory that it may not access, or executed an invalid instruction."""
    XID = "xid"
    """The driver reported an Xid of another kind."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class GpuFault:
    """One fault and how to fix it."""

    kind: FaultKind
    fix: str
    """What to do, without a capital and a full stop."""


@dataclass(frozen=True, slots=True)
class NcclProblem:
    """A configuration that NCCL refuses, and how to fix it."""

    what: str
    """Predicate that completes a sentence with the subject ``NCCL``, for example ``finds no network 'IB'``."""
    fix: str
    """What to do, without a capital and a full stop."""


_REPLACE: Final = "cordon the node, drain it and reset the GPU (nvidia-smi --gpu-reset); replace a GPU that fails again"

_FIXES: Final = {
    FaultKind.ECC: _REPLACE,
    FaultKind.NVLINK: "cordon the node and check 'nvidia-smi nvlink -e'; reset all GPUs of the node together",
    FaultKind.LOST: "cordon the node and look for 'Xid' in its kernel log; a GPU that fell off the bus needs a reboot",
    FaultKind.FABRIC: "start nvidia-fabricmanager on the node in the version of its driver",
    FaultKind.DRIVER: "update the NVIDIA driver of the node, or use an image whose torch is built for its CUDA version",
    FaultKind.ABSENT: "request GPUs (--gpus); a node that has some needs the NVIDIA driver and device plugin",
    FaultKind.MISSING: "start at most one worker per GPU; where a GPU is missing, look for 'Xid' in the kernel log",
    FaultKind.ACCESS: "look for 'Xid' in the kernel log; where other nodes fail alike, look for a bug of a kernel: "
    "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer",
    FaultKind.XID: "look the Xid up in NVIDIA's catalogue; cordon the node if it comes again",
    FaultKind.OTHER: "look for 'Xid' in the kernel log of the node; cordon it if it fails again",
}


def _kind(kind: FaultKind, *words: str, xids: str = "") -> tuple[re.Pattern[str], FaultKind]:
    named = [rf"Xid\b.{{0,60}}?: ?(?:{xids})\b"] if xids else []
    return re.compile("|".join([*words, *named]), re.IGNORECASE), kind


_KINDS: Final = (
    _kind(FaultKind.ECC, "uncorrectable ECC", "cudaErrorECCUncorrectable", xids="48|63|64|94|95"),
    _kind(FaultKind.NVLINK, "uncorrectable NVLink", "peer GPU memory over nvlink", xids="74|149"),
    _kind(
        FaultKind.LOST,
        "fallen off the bus",
        "GPU is lost",
        "the GPU does not answer",
        r"(?:CUDA error|Cuda failure).{0,8}unknown error",
        "CUDA unknown error",
        "no CUDA-capable device",
        "No CUDA GPUs are available",
        r"devices?(?:\(s\))? (?:is/are|is|are) busy or unavailable",
        xids="79|119|120|154",
    ),
    _kind(FaultKind.FABRIC, "system not yet initialized", "cudaErrorSystemNotReady"),
    _kind(
        FaultKind.DRIVER,
        "driver version is insufficient",
        "unsupported display driver",
        "driver on your system is too old",
        "forward compatibility was attempted",
        "compiled with an unsupported toolchain",
    ),
    _kind(FaultKind.ABSENT, "Found no NVIDIA driver"),
    _kind(FaultKind.MISSING, "invalid device ordinal"),
    _kind(
        FaultKind.ACCESS,
        "illegal memory access",
        "misaligned address",
        "illegal instruction was",
        "invalid program counter",
        "unspecified launch failure",
        "hardware stack error",
        "on global/shared address space",
        xids="13|31",
    ),
    _kind(FaultKind.XID, xids=r"\d+"),
    _kind(FaultKind.OTHER, "the probe ended with", "unhandled cuda error", "ncclUnhandledCudaError"),
)
"""The first pattern that matches decides."""

_SPEAKER: Final = re.compile(r"(?i)\bcuda\b|nccl|\bNVRM\b|nvidia|nvml|\bXid\b|GPU is lost|Accelerator")
"""Names of programs that report GPU faults. Other programs also report illegal accesses and unknown errors."""

_MEMORY: Final = re.compile(
    r"(?i)OutOfMemoryError|CUDA.{0,20}out of memory|ncclUnhandledCudaError[\s\S]{0,80}out of memory"
)

_BUGS: Final = re.compile(r"(?i)device-side assert triggered")
"""A failed assertion of a kernel, usually an invalid index of the model's input; not a fault of a GPU."""

_NETWORK: Final = re.compile(r"network (.+?) not found|Failed to initialize any NET plugin")
_TWICE: Final = re.compile(r"Duplicate GPU detected ?: (?P<which>.+)|Multiple Ranks are using the same GPU.*")
"""Texts of NCCL before 2.30, and from 2.30 on."""
_VERSIONS: Final = re.compile(r"Mismatched NCCL version detected ?: (.+)")
_USAGE: Final = re.compile(r"ncclInvalidUsage|ncclInvalidArgument|NCCL error[^\n]*invalid (?:usage|argument)")


def fault_in(message: str) -> GpuFault | None:
    """Return the GPU fault that a message reports, or None.

    A GPU that has no memory left is not faulty, nor is one whose kernel failed an assertion.

    >>> fault_in("CUDA error: uncorrectable ECC error encountered").kind
    <FaultKind.ECC: 'ecc'>
    >>> fault_in("CUDA out of memory. Tried to allocate 20.00 MiB") is None
    True
    """
    if not _SPEAKER.search(message) or is_out_of_gpu_memory(message) or _BUGS.search(message):
        return None
    kind = next((kind for pattern, kind in _KINDS if pattern.search(message)), None)
    return None if kind is None else GpuFault(kind, _FIXES[kind])


def is_out_of_gpu_memory(message: str) -> bool:
    """Return whether torch, CUDA or NCCL found no memory left on a GPU."""
    return _MEMORY.search(message) is not None


def nccl_config_error(message: str, network: str = "") -> NcclProblem | None:
    """Return why NCCL refuses a configuration, or None where it does not. A retry does not help.

    Args:
        message: Text of an error of torch or NCCL.
        network: Value of ``NCCL_NET``.
    """
    if "nccl" not in message.lower():
        return None
    if match := _TWICE.search(message):
        fix = (
            "start at most one rank per GPU; from NCCL 2.30 on, NCCL_MULTI_RANK_GPU_ENABLE=1 allows several, at a loss "
            "of speed"
        )
        return NcclProblem(f"refuses two ranks on one GPU ({(match['which'] or match[0]).strip()})", fix)
    if match := _VERSIONS.search(message):
        return NcclProblem(f"has different versions on two ranks ({match[1].strip()})", "use one image for all pods")
    if match := _NETWORK.search(message):
        named = network or (match[1] or "")
        what = f"finds no network {named!r}" if named else "finds no network"
        return NcclProblem(
            what,
            "use an image with the plugin and libraries of that network, or unset NCCL_NET to let NCCL choose"
            if named
            else "check NCCL_NET, NCCL_NET_PLUGIN and the libraries of the image",
        )
    if _USAGE.search(message):
        return NcclProblem(
            "refuses the call as invalid", "set NCCL_DEBUG=WARN and read what NCCL prints before this error"
        )
    return None


def cause_line(text: str) -> str:
    """Return the line of a CUDA or NCCL message that names the cause, without a full stop.

    >>> cause_line("NCCL error in: x.cpp:94. Last error: Cuda failure 719.")
    'Cuda failure 719'
    """
    heading, _, last = text.partition("Last error:")
    lines = (last.strip() or heading.strip()).splitlines() or ["no reason was given"]
    return lines[0].partition(". Please ")[0].rstrip(". ")
