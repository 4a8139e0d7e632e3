"""Checkpoints, machines, and the exporter itself: cases of alerts."""

from __future__ import annotations

from typing import Final

from tests.render.rule_case import BEFORE, RUNNING, WAITS_FOR_NODES, WHOLE_JOB, Case, of, two_runs

_FAILED: Final = of("ddp_checkpoint_consecutive_failures")
_FAILED_BESIDE: Final = of("ddp_checkpoint_consecutive_failures", pod="digits-worker-1")
_SAVED: Final = of("ddp_checkpoint_last_success_timestamp_seconds")
_EVERY: Final = of("ddp_checkpoint_interval_seconds")
_BLOCKED: Final = of("ddp_checkpoint_blocking_seconds_total")
_SAVED_LATELY: Final = {
    _SAVED: "0x20 1200x20 2400x60",
    of("ddp_checkpoint_last_success_timestamp_seconds", pod="digits-worker-1"): "0x60",
    _EVERY: "1200x60",
    RUNNING: "1x60",
}
CHECKPOINTS: Final = (
    Case("DdpCheckpointFailing", "three in a row, within three minutes", "4m", {_FAILED: "0 1 2 3x30"}, WHOLE_JOB),
    Case("DdpCheckpointFailing", "three of one pod", "4m", {_FAILED: "0x30", _FAILED_BESIDE: "3x30"}, WHOLE_JOB),
    Case("DdpCheckpointFailing", "two in a row", "20m", {_FAILED: "0 1 2x30"}),
    Case("DdpCheckpointFailing", "the next succeeds", "20m", {_FAILED: "0 1 2 3 4 0x30"}),
    Case("DdpCheckpointBlocking", "a fifth of the time", "45m", {_BLOCKED: "0+12x60"}, WHOLE_JOB),
    Case("DdpCheckpointBlocking", "in the run before", "50m", {_BLOCKED: "0+30x30 0+1x30", **two_runs(30)}),
    Case("DdpCheckpointBlocking", "a twentieth", "50m", {_BLOCKED: "0+3x60"}),
    Case("DdpCheckpointStale", "four intervals", "46m", {_SAVED: "0x60", _EVERY: "600x60", RUNNING: "1x60"}, WHOLE_JOB),
    Case("DdpCheckpointStale", "two intervals, and an old one of rank 1", "60m", _SAVED_LATELY),
    Case("DdpCheckpointStale", "it waits for nodes", "60m", {_SAVED: "0x60", _EVERY: "600x60", **WAITS_FOR_NODES}),
)
_GPU: Final = "GPU-5d7e7c5f"
_RETRIES: Final = of("ddp_gpu_alloc_retries_total", rank="1")
_ON_GPU: Final = of("ddp_rank_info", rank="1", pod="digits-worker-1", local_rank="1", gpu_uuid=_GPU)
_NOW: Final = of("ddp_rank_info", rank="1", pod="digits-worker-1", local_rank="1", gpu_uuid=_GPU, node="b")
_OF_OTHERS: Final = of("ddp_rank_info", rank="0", local_rank="0", gpu_uuid="GPU-11111111")
_OF_GPU: Final = ({"rank": "1", "pod": "digits-worker-1", "gpu_uuid": _GPU},)


def _dcgm(field: str, uuid: str = _GPU) -> str:
    """A series of DCGM's exporter, which names its own pod, and the job's as ``exported_pod``."""
    return (
        f'DCGM_FI_DEV_{field}{{UUID="{uuid}",gpu="1",namespace="gpu-operator",pod="dcgm-exporter-x",'
        'exported_namespace="training",exported_pod="digits-worker-1"}'
    )


_USED: Final = of("ddp_shm_used_bytes")
_SIZE: Final = of("ddp_shm_size_bytes")
DEVICES: Final = (
    Case("DdpGpuMemoryPressure", "again and again", "20m", {_RETRIES: "0+2x30"}, ({"rank": "1"},)),
    Case("DdpGpuMemoryPressure", "never", "20m", {_RETRIES: "0x30"}),
    Case("DdpGpuMemoryPressure", "in the job of this name before", "15m", {_RETRIES: BEFORE}),
    Case("DdpGpuXid", "79", "2m", {_ON_GPU: "1x5", _OF_OTHERS: "1x5", _dcgm("XID_ERRORS"): "0 79x5"}, _OF_GPU),
    Case("DdpGpuXid", "two pods", "2m", {_ON_GPU: "1x5", _NOW: "_ _ _ 1x5", _dcgm("XID_ERRORS"): "0 79x5"}, _OF_GPU),
    Case("DdpGpuXid", "31, which a program causes", "2m", {_ON_GPU: "1x5", _dcgm("XID_ERRORS"): "0 31x5"}),
    Case("DdpGpuXid", "of a GPU of others", "2m", {_OF_OTHERS: "1x5", _dcgm("XID_ERRORS"): "0 79x5"}),
    Case("DdpGpuXid", "none", "2m", {_ON_GPU: "1x5", _dcgm("XID_ERRORS"): "0x5"}),
    Case("DdpGpuThrottled", "it grows", "10m", {_ON_GPU: "1x20", _dcgm("THERMAL_VIOLATION"): "0+9x20"}, _OF_GPU),
    Case("DdpGpuThrottled", "it stays", "20m", {_ON_GPU: "1x20", _dcgm("THERMAL_VIOLATION"): "9x20"}),
    Case("DdpShmNearlyFull", "95 %", "7m", {_USED: "95x10", _SIZE: "100x10"}, ({"pod": "digits-worker-0"},)),
    Case("DdpShmNearlyFull", "80 %", "9m", {_USED: "80x10", _SIZE: "100x10"}),
    Case("DdpShmNearlyFull", "for a moment", "9m", {_USED: "10x3 95 95 10x10", _SIZE: "100x20"}),
)
_STALE: Final = of("ddp_exporter_stale_boards")
_VERSION: Final = of("ddp_build_info", version="0.1.0")
_EXPORTER_POD: Final = ({"namespace": "training", "pod": "digits-worker-0"},)


def _up(monitor: str) -> str:
    return f'up{{job="training/{monitor}",namespace="training",pod="digits-worker-0"}}'


_ANSWERED: Final = {_up("digits"): "1 1 0x20", _VERSION: "1 1 _x20"}
_GONE: Final = {_up("digits"): "1 0 _x20", _up("ddp-workers"): "1 0 _x20", _VERSION: "1 _x20"}
EXPORTER: Final = (
    Case("DdpExporterDown", "it is silent", "6m", {_up("ddp-workers"): "0x20"}, _EXPORTER_POD, belongs_to_job=False),
    Case("DdpExporterDown", "it has answered before", "9m", _ANSWERED, _EXPORTER_POD, belongs_to_job=False),
    Case("DdpExporterDown", "pod and PodMonitor are gone, and their series not yet", "6m", _GONE),
    Case("DdpExporterDown", "a pod of others", "9m", {_up("shop"): "0x20"}),
    Case("DdpExporterDown", "one scrape is missing", "9m", {_up("ddp-workers"): "1x5 0 1x5"}),
    Case("DdpExporterStaleBoards", "one board", "6m", {_STALE: "1x10"}, ({"pod": "digits-worker-0"},)),
    Case("DdpExporterStaleBoards", "none", "9m", {_STALE: "0x10"}),
)
