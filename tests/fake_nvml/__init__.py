"""A stand-in for NVIDIA's management library, compiled by the machine's C compiler; see ``nvml.c``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.common.metric_names import MetricLabel
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.process.gpu_devices import LIBRARY

ANSWERS = "FAKE_NVML"
"""Variable with the name of the file of answers."""
SOURCE = Path(__file__).with_name("nvml.c")
HEALTHY: Mapping[str, str] = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetUUID": "GPU-5d6e",
    "nvmlDeviceGetCudaComputeCapability": "9 0",
    "nvmlDeviceGetMemoryInfo": f"{81559 << 20} {556 << 20}",
    "nvmlDeviceGetUtilizationRates": "97 40",
    "nvmlDeviceGetClockInfo:1": "1755",
    "nvmlDeviceGetMaxClockInfo:1": "1980",
    "nvmlDeviceGetTotalEccErrors": "0",
    "nvmlDeviceGetRemappedRows": "0 0 0 0",
    "nvmlDeviceGetFieldValues:230": "0",
    "nvmlDeviceGetGpuFabricInfoV": "3 0 0x0",
    "nvmlDeviceGetNvLinkState": "18 18",
    "nvmlDeviceGetCurrPcieLinkGeneration": "5",
    "nvmlDeviceGetMaxPcieLinkGeneration": "5",
    "nvmlDeviceGetCurrPcieLinkWidth": "16",
    "nvmlDeviceGetMaxPcieLinkWidth": "16",
    "nvmlDeviceGetPcieReplayCounter": "0",
    "nvmlDeviceGetPerformanceState": "0",
    "nvmlDeviceGetCurrentClocksEventReasons": "1",
    "nvmlDeviceGetComputeRunningProcesses_v3": "",
}
"""Answers of one GPU without a fault; ``:N`` is the second argument of a function, after the GPU."""


def compiled(folder: Path, *flags: str) -> str:
    """Return the library, compiled in ``folder`` under the driver's file name; skip the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("This machine has no C compiler.")
    library = folder / LIBRARY
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return str(library)


def answers(file: Path, *gpus: Mapping[str, str], **system: str) -> None:
    """Write what the library answers, for a driver that runs CUDA 13.0 unless ``system`` has another."""
    general = {
        "nvmlSystemGetDriverVersion": "580.65.06",
        "nvmlSystemGetCudaDriverVersion_v2": "13000",
        "nvmlDeviceGetCount_v2": str(len(gpus)),
        **system,
    }
    lines = [f"{name}={value}" for name, value in general.items()]
    for index, gpu in enumerate(gpus):
        own = {"nvmlDeviceGetPciInfo_v3": f"00000000:{16 + index:02X}:00.0", **gpu}
        for name, value in own.items():
            function, _, asked = name.partition(":")
            lines.append(f"{function} {index}{' ' + asked if asked else ''}={value}")
    file.write_text("\n".join(lines) + "\n")


def rank_of_gpu(boards: Path, rank: int, uuid: str) -> None:
    """Write the metrics file of a rank that computes on the GPU with this UUID; empty for none."""
    place = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "4"}
    recorder = attach.rank_recorder({Env.METRICS_DIR: str(boards), **place})
    assert isinstance(recorder, MmapRankRecorder)
    recorder.identity(rank=rank, local_rank=rank, world_size=4, backend="nccl", device="cpu")
    recorder._file.describe(recorder._file.identity | {MetricLabel.GPU_UUID: uuid})
