"""Checks of GPUs: presence, health, links at full width, and use by others.

A failure is a state for which NVIDIA, Azure and NVSentinel take a node out of service. A state that slows a run down is
a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ddp_preflight.schema import Facts, Finding, Gpu, Report, Status

FATAL_XIDS: Final = frozenset({48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 119, 120})
"""Errors of memory, links, firmware and bus that require a reset or replacement of the GPU. Programs cause the others.

Source: https://github.com/Azure/azurehpc-health-checks (customTests/azure_gpu_xid.nhc), meanings:
https://docs.nvidia.com/deploy/xid-errors.
"""
MOST_IDLE_MIB: Final = 2048
"""Memory in MiB up to which a GPU counts as idle. The driver keeps some hundred MiB; about 600 on GPUs with 141 GB and
ECC.
"""
LEAST_CAPABILITIES: Final = {13: (7, 5)}
"""Major version of CUDA → lowest compute capability that its libraries and compiler support.

Source: release notes of CUDA 13.0 (removed architectures), https://docs.nvidia.com/cuda/cuda-toolkit-release-notes.
"""
_FULL_SPEED: Final = 0
_DRAIN: Final = "drain the node and reset the GPU: nvidia-smi --gpu-reset; replace it when they come back"
_RESET_IT: Final = "drain the node, reset the GPU or reboot, and replace it when that does not help"


_Trouble = tuple[Status, str, str]
"""Status, observation and next step."""


def gpus(facts: Facts) -> Iterator[Finding]:
    """Check that each worker has a GPU, that all nodes have the same kind, and that the driver supports torch's
    CUDA.
    """
    most = max((len(report.gpus) for report in facts.reports), default=0)
    for report in facts.reports:
        if not report.gpus:
            yield _without_gpus(report, others_have=most > 0)
            continue
        if len(report.gpus) < report.local_world_size:
            message = f"{len(report.gpus)} GPUs for {report.local_world_size} workers"
            hint = "lower --nproc-per-node, or look for the missing GPU in the kernel's log (Xid)"
            yield Finding(Status.FAIL, report.name, message, hint)
        yield from _old_driver(report)
        yield from _old_gpus(report)
        yield from _gpu_model_mismatch(facts, report.name, {gpu.name for gpu in report.gpus})


def health_of(node: str, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Check memory, driver and clocks of each GPU of one node."""
    for gpu in gpus:
        yield from _of_gpu(node, gpu, _health_problems(gpu))


def links_of(node: str, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Check that each GPU of one node has joined its fabric and has all its NVLinks and PCI lanes."""
    usual = _max_nvlink_counts(gpus)
    for gpu in gpus:
        yield from _of_gpu(node, gpu, (*_nvswitch_problems(gpu), *_nvlink_problems(gpu, usual[gpu.name]), *_pcie(gpu)))


def use_of(node: str, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Check that no other process computes on a GPU of one node or occupies its memory."""
    for gpu in gpus:
        yield from _of_gpu(node, gpu, _uses(gpu))


def on_all_nodes(check: Callable[[str, Sequence[Gpu]], Iterator[Finding]], facts: Facts) -> Iterator[Finding]:
    """Yield the findings of a check of one node's GPUs for all nodes. Nodes without GPUs are skipped."""
    for report in facts.reports:
        if not report.gpus:
            yield Finding(Status.SKIP, report.name, report.gpu_note)
        yield from check(report.name, report.gpus)


def _of_gpu(node: str, gpu: Gpu, troubles: Iterable[_Trouble]) -> Iterator[Finding]:
    for status, trouble, hint in troubles:
        yield Finding(status, node, f"GPU {gpu.index} ({gpu.name}) {trouble}", hint)


def _health_problems(gpu: Gpu) -> Iterator[_Trouble]:
    if gpu.is_lost:
        reason = "; ".join(dict.fromkeys(gpu.unread.values()))
        yield Status.FAIL, f"cannot be reached ({reason})", _RESET_IT
    if gpu.needs_reset:
        yield Status.FAIL, "is to be reset", _DRAIN
    if gpu.uncorrected_errors:
        yield Status.FAIL, f"had {gpu.uncorrected_errors} uncorrected errors", _DRAIN
    if gpu.remap_failed:
        yield Status.FAIL, "could not replace a bad row of its memory", "drain the node, and have the GPU replaced"
    if gpu.recovery_action not in {"", "none"}:
        action = gpu.recovery_action
        yield Status.FAIL, f"needs to be recovered, by its driver: {action}", f"drain the node: {action}"
    if xids := sorted(FATAL_XIDS.intersection(gpu.xids)):
        listed = f"{'Xid' if len(xids) == 1 else 'Xids'} {', '.join(map(str, xids))}"
        yield Status.FAIL, f"had {listed} in the last two hours", _RESET_IT
    if gpu.slowdowns:
        hint = "look at the cooling and the power of the machine; the slowest GPU sets the pace"
        yield Status.WARN, f"is slowed down ({', '.join(gpu.slowdowns)})", hint
    if gpu.unread and not gpu.is_lost:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in sorted(gpu.unread.items()))
        yield Status.WARN, f"does not tell all of itself ({reasons})", "look at nvidia-smi -q and the kernel's log"


def _uses(gpu: Gpu) -> Iterator[_Trouble]:
    if gpu.processes:
        whose = ", ".join(map(str, gpu.processes[:8]))
        trouble = f"is in use by {'process' if len(gpu.processes) == 1 else 'processes'} {whose}"
        yield Status.WARN, trouble, "end what runs there, or take another GPU"
    elif gpu.processes == () and (gpu.memory_used_mib or 0) > MOST_IDLE_MIB:
        trouble = f"has {gpu.memory_used_mib} MiB in use, and no process that is seen from here"
        hint = "another container shares the GPU, or a dead process left memory behind: reset the GPU"
        yield Status.WARN, trouble, hint


def _nvswitch_problems(gpu: Gpu) -> Iterator[_Trouble]:
    if gpu.fabric_state not in {"", "completed", "not supported"}:
        trouble = f"has not joined the fabric of its NVSwitches ({gpu.fabric_state}), and CUDA does not start there"
        yield Status.FAIL, trouble, "look at the fabric manager: systemctl status nvidia-fabricmanager"
    if gpu.fabric_faults:
        faults = ", ".join(gpu.fabric_faults)
        yield Status.FAIL, f"has a fabric with {faults}", "drain the node, and look at the fabric manager's log"


def _nvlink_problems(gpu: Gpu, usual: int) -> Iterator[_Trouble]:
    if gpu.nvlinks_up is not None and gpu.nvlinks_up < usual:
        trouble = f"has {gpu.nvlinks_up} NVLinks up, others of this node {usual}"
        yield Status.FAIL, trouble, "drain the node; nvidia-smi nvlink --status names the link"
    if gpu.nvlink_errors:
        trouble = f"had {gpu.nvlink_errors} replays and recoveries of NVLinks"
        yield Status.WARN, trouble, "watch whether they grow: nvidia-smi nvlink --errorcounters"


def _pcie(gpu: Gpu) -> Iterator[_Trouble]:
    hint = "reseat the GPU or replace its riser; the driver limits what the slot cannot do"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        yield Status.WARN, f"uses {gpu.pcie_width} of {gpu.pcie_width_max} lanes of PCI", hint
    # A GPU that saves power lowers the generation by itself.
    is_awake = gpu.performance_state == _FULL_SPEED
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    if is_awake and now and most and now < most:
        yield Status.WARN, f"is at PCI generation {now}, and could be at {most}", hint


def _max_nvlink_counts(gpus: Sequence[Gpu]) -> Counter[str]:
    """Return the most NVLinks that are up on one GPU of this node, by kind of GPU."""
    most: Counter[str] = Counter()
    for gpu in gpus:
        most[gpu.name] = max(most[gpu.name], gpu.nvlinks_up or 0)
    return most


def _old_driver(report: Report) -> Iterator[Finding]:
    """Check the driver's CUDA version. A driver runs all CUDA versions up to its own major version."""
    versions = report.software.versions
    of_torch, of_driver = (versions.get(name, "") for name in ("cuda", "driver_cuda"))
    if of_torch and of_driver and int(of_driver.partition(".")[0]) < int(of_torch.partition(".")[0]):
        message = (
            f"driver {versions.get('driver', '')} runs CUDA up to {of_driver}, and torch was built with {of_torch}"
        )
        hint = f"update the driver, or take an image whose torch has CUDA {of_driver.partition('.')[0]}"
        yield Finding(Status.FAIL, report.name, message, hint)


def _old_gpus(report: Report) -> Iterator[Finding]:
    """Check that CUDA has code for each GPU."""
    cuda = report.software.versions.get("cuda", "").partition(".")[0]
    least = LEAST_CAPABILITIES.get(int(cuda or 0), ())
    for gpu in report.gpus:
        if gpu.compute_capability and gpu.compute_capability < least:
            have, need = (".".join(map(str, version)) for version in (gpu.compute_capability, least))
            message = f"GPU {gpu.index} ({gpu.name}) has compute capability {have}, and CUDA {cuda} needs {need}"
            yield Finding(Status.FAIL, report.name, message, "take an image whose torch has an older CUDA")


def _without_gpus(report: Report, *, others_have: bool) -> Finding:
    if not others_have and not report.has_driver:
        return Finding(Status.SKIP, report.name, report.gpu_note)
    hint = "request as many GPUs on every node, and check nvidia-smi and the kernel's log"
    return Finding(Status.FAIL if others_have else Status.WARN, report.name, report.gpu_note, hint)


def _gpu_model_mismatch(facts: Facts, node: str, kinds: set[str]) -> Iterator[Finding]:
    first = next(report for report in facts.reports if report.gpus)
    others = {gpu.name for gpu in first.gpus}
    if kinds != others:
        message = f"{', '.join(sorted(kinds))} here, {', '.join(sorted(others))} on {first.name}"
        yield Finding(Status.WARN, node, message, "the slowest GPU sets the pace; choose nodes of one kind")
