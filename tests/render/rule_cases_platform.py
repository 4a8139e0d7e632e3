"""Checkpoints, machines, and the exporter itself: cases of alerts."""

from __future__ import annotations

from typing import Final

from tests.render.rule_case import BEFORE, RUNNING, WHOLE_JOB, Case, of, state

_FAILED: Final = of("ddp_checkpoint_consecutive_failures")
_SAVED: Final = of("ddp_checkpoint_last_success_timestamp_seconds")
_EVERY: Final = of("ddp_checkpoint_interval_seconds")
_BLOCKED: Final = of("ddp_checkpoint_blocking_seconds_total")
CHECKPOINTS: Final = (
    Case("DdpCheckpointFailing", "three in a row, within three minutes", "4m", {_FAILED: "0 1 2 3x30"}, WHOLE_JOB),
    Case(
        "DdpCheckpointFailing",
        "three of one pod, while another pod saves",
        "4m",
        {_FAILED: "0x30", of("ddp_checkpoint_consecutive_failures", pod="digits-worker-1"): "3x30"},
        WHOLE_JOB,
    ),
    Case("DdpCheckpointFailing", "two in a row", "20m", {_FAILED: "0 1 2x30"}),
    Case("DdpCheckpointFailing", "the next succeeds", "20m", {_FAILED: "0 1 2 3 4 0x30"}),
    Case("DdpCheckpointBlocking", "a fifth of the time", "45m", {_BLOCKED: "0+12x60"}, WHOLE_JOB),
    Case(
        "DdpCheckpointBlocking",
        "in the run of this name before",
        "50m",
        {
            _BLOCKED: "0+30x30 0+1x30",
            of("ddp_job_info", run_id="a"): "1x30 _x30",
            of("ddp_job_info", run_id="b"): "_x31 1x30",
        },
    ),
    Case("DdpCheckpointBlocking", "a twentieth", "50m", {_BLOCKED: "0+3x60"}),
    Case(
        "DdpCheckpointStale",
        "four intervals ago",
        "46m",
        {_SAVED: "0x60", _EVERY: "600x60", RUNNING: "1x60"},
        WHOLE_JOB,
    ),
    Case(
        "DdpCheckpointStale",
        "two intervals, and the pod of rank 1 has an old one",
        "60m",
        {
            _SAVED: "0x20 1200x20 2400x60",
            of("ddp_checkpoint_last_success_timestamp_seconds", pod="digits-worker-1"): "0x60",
            _EVERY: "1200x60",
            RUNNING: "1x60",
        },
    ),
    Case(
        "DdpCheckpointStale",
        "it waits for nodes, and there is nothing to save",
        "60m",
        {_SAVED: "0x60", _EVERY: "600x60", RUNNING: "0x60", state("rendezvous"): "1x60"},
    ),
)
_GPU: Final = "GPU-5d7e7c5f"
_RETRIES: Final = of("ddp_gpu_alloc_retries_total", rank="1")
_ON_GPU: Final = of("ddp_rank_info", rank="1", pod="digits-worker-1", local_rank="1", gpu_uuid=_GPU)
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
    Case(
        "DdpGpuXid",
        "the pod of before overlaps with the one of now",
        "2m",
        {
            _ON_GPU: "1x5",
            of("ddp_rank_info", rank="1", pod="digits-worker-1", local_rank="1", gpu_uuid=_GPU, node="b"): "_ _ _ 1x5",
            _dcgm("XID_ERRORS"): "0 79x5",
        },
        _OF_GPU,
    ),
    Case("DdpGpuXid", "31, which a program causes", "2m", {_ON_GPU: "1x5", _dcgm("XID_ERRORS"): "0 31x5"}),
    Case("DdpGpuXid", "of a GPU of others", "2m", {_OF_OTHERS: "1x5", _dcgm("XID_ERRORS"): "0 79x5"}),
    Case("DdpGpuXid", "none", "2m", {_ON_GPU: "1x5", _dcgm("XID_ERRORS"): "0x5"}),
    Case("DdpGpuThrottled", "it grows", "10m", {_ON_GPU: "1x20", _dcgm("THERMAL_VIOLATION"): "0+9x20"}, _OF_GPU),
    Case("DdpGpuThrottled", "it stays", "20m", {_ON_GPU: "1x20", _dcgm("THERMAL_VIOLATION"): "9x20"}),
    Case("DdpShmNearlyFull", "95 %", "7m", {_USED: "95x10", _SIZE: "100x10"}, ({"pod": "digits-worker-0"},)),
    Case("DdpShmNearlyFull", "80 %", "9m", {_USED: "80x10", _SIZE: "100x10"}),
    Case("DdpShmNearlyFull", "for a moment", "9m", {_USED: "10x3 95 95 10x10", _SIZE: "100x20"}),
)
_POD: Final = 'namespace="training",pod="digits-worker-0"'
EXPORTER: Final = (
    Case(
        "DdpExporterDown",
        "of the platform's PodMonitor, and it never answered",
        "6m",
        {f'up{{job="training/ddp-workers",{_POD}}}': "0x20"},
        ({"namespace": "training", "pod": "digits-worker-0"},),
        belongs_to_job=False,
    ),
    Case(
        "DdpExporterDown",
        "of a job's own PodMonitor, and it has answered before",
        "9m",
        {f'up{{job="training/digits",{_POD}}}': "1 1 0x20", of("ddp_build_info", version="0.1.0"): "1 1 _x20"},
        ({"namespace": "training", "pod": "digits-worker-0"},),
        belongs_to_job=False,
    ),
    Case(
        "DdpExporterDown",
        "the pod and its own PodMonitor are gone, and no scrape marks the series as stale",
        "6m",
        {
            f'up{{job="training/digits",{_POD}}}': "1 0 _x20",
            f'up{{job="training/ddp-workers",{_POD}}}': "1 0 _x20",
            of("ddp_build_info", version="0.1.0"): "1 _x20",
        },
    ),
    Case("DdpExporterDown", "a pod of others", "9m", {f'up{{job="training/shop",{_POD}}}': "0x20"}),
    Case("DdpExporterDown", "one scrape is missing", "9m", {f'up{{job="training/ddp-workers",{_POD}}}': "1x5 0 1x5"}),
    Case(
        "DdpExporterStaleBoards",
        "one board",
        "6m",
        {of("ddp_exporter_stale_boards"): "1x10"},
        ({"pod": "digits-worker-0"},),
    ),
    Case("DdpExporterStaleBoards", "none", "9m", {of("ddp_exporter_stale_boards"): "0x10"}),
)
