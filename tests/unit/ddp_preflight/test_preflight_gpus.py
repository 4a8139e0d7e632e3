"""GPUs as NVML reports them, read from a compiled library with its entry points, and Xids of the kernel's log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_preflight import gpus
from ddp_preflight.nvml import NvmlReport, read
from ddp_preflight.schema import Gpu
from tests import fake_nvml
from tests.fake_nvml import HEALTHY
from tests.support.preflight_reports import WHOLE_GPU

ReadGpus = Callable[..., NvmlReport]

EXPECTED = replace(WHOLE_GPU, name="NVIDIA H100 80GB HBM3", uuid="GPU-5d6e", pcie_replays=0)


FABRIC, CLOCKS = "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCurrentClocksEventReasons"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_nvml.compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def read_gpus(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadGpus:
    """Read GPUs from the library, which has one table of answers per GPU."""

    def ask(*cards: Mapping[str, str], log: str = "", proc: Path = Path("/proc"), **system: str) -> NvmlReport:
        fake_nvml.answers(tmp_path / "answers", *cards, **system)
        monkeypatch.setenv(fake_nvml.ANSWERS, str(tmp_path / "answers"))
        (tmp_path / "kmsg").write_text(log)
        return gpus.gpus(library, tmp_path / "kmsg", proc)

    return ask


def test_every_field_of_a_healthy_gpu_is_read(read_gpus: ReadGpus) -> None:
    assert read_gpus(HEALTHY, HEALTHY) == NvmlReport(
        driver="580.65.06", cuda="13.0", gpus=(EXPECTED, replace(EXPECTED, index=1, bus_id="00000000:11:00.0"))
    )


@pytest.mark.parametrize(
    ("answer", "field", "value"),
    [
        ({"nvmlDeviceGetTotalEccErrors": str(2**64 - 1)}, "uncorrected_errors", 1 << 40),
        ({"nvmlDeviceGetRemappedRows": "0 1 1 0"}, "needs_reset", True),
        ({"nvmlDeviceGetRemappedRows": "0 1 0 1"}, "remap_failed", True),
        ({"nvmlDeviceGetFieldValues:230": "2"}, "recovery_action", "reboot the node"),
        ({"nvmlDeviceGetFieldValues:230": "77"}, "recovery_action", "action 77"),
        ({FABRIC: "2 0 0x0"}, "fabric_state", "in progress"),
        ({FABRIC: "3 999 0x0"}, "fabric_state", "failed with error 999"),
        ({FABRIC: "3 0 0x511"}, "fabric_faults", ("degraded bandwidth", "an unhealthy route", "a wrong configuration")),
        ({FABRIC: "3 0 0x1aa"}, "fabric_faults", ()),
        ({"nvmlDeviceGetNvLinkState": "18 17"}, "nvlinks_up", 17),
        ({"nvmlDeviceGetNvLinkErrorCounter:17 1": "3", "nvmlDeviceGetNvLinkErrorCounter:0 0": "2"}, "nvlink_errors", 5),
        ({CLOCKS: "0x61"}, "slowdowns", ("software thermal slowdown", "hardware thermal slowdown")),
        ({CLOCKS: "0x5"}, "slowdowns", ()),
    ],
)
def test_each_fault_of_a_gpu_is_read(read_gpus: ReadGpus, answer: dict[str, str], field: str, value: object) -> None:
    [gpu] = read_gpus({**HEALTHY, **answer}).gpus
    assert getattr(gpu, field) == value


FIELDS_OF = {
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetUUID": {"uuid"},
    "nvmlDeviceGetMemoryInfo": {"memory_mib", "memory_used_mib"},
    "nvmlDeviceGetTotalEccErrors": {"uncorrected_errors"},
    "nvmlDeviceGetRemappedRows": {"remap_failed"},  # pages that are to be retired say as much of a reset
    "nvmlDeviceGetFieldValues:230": {"recovery_action"},
    "nvmlDeviceGetGpuFabricInfoV": {"fabric_state", "fabric_faults"},
    "nvmlDeviceGetNvLinkState": {"nvlinks", "nvlinks_up", "nvlink_errors"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max"},
    "nvmlDeviceGetPcieReplayCounter": {"pcie_replays"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes"},
}


@pytest.mark.parametrize("function", FIELDS_OF)
def test_a_field_that_cannot_be_read_is_the_only_one_that_is_lost(read_gpus: ReadGpus, function: str) -> None:
    pages = {"nvmlDeviceGetRetiredPagesPendingStatus": "0"}
    [gpu] = read_gpus({**HEALTHY, **pages, function: "!999"}).gpus
    assert set(gpu.unread) == FIELDS_OF[function]
    assert set(gpu.unread.values()) == {"Unknown Error"}
    empty = Gpu(index=0, name="unknown")
    assert replace(gpu, unread={}) == replace(EXPECTED, **{name: getattr(empty, name) for name in FIELDS_OF[function]})


def test_what_a_gpu_does_not_have_is_no_trouble(read_gpus: ReadGpus) -> None:
    [gpu] = read_gpus({"nvmlDeviceGetName": "Tesla T4"}).gpus
    assert (gpu.name, gpu.nvlinks, gpu.fabric_state, gpu.unread) == ("Tesla T4", None, "", {})


def test_an_old_driver_lacks_functions_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_nvml.compiled(tmp_path, "-DOLD_DRIVER")
    fake_nvml.answers(tmp_path / "answers", {**HEALTHY, "nvmlDeviceGetCurrentClocksThrottleReasons": "0x80"})
    monkeypatch.setenv(fake_nvml.ANSWERS, str(tmp_path / "answers"))
    [gpu] = gpus.gpus(old).gpus
    assert (gpu.fabric_state, gpu.slowdowns, gpu.nvlinks_up, gpu.unread) == ("", ("power brake",), 18, {})


def test_a_gpu_that_fell_off_the_bus_takes_no_other_with_it(read_gpus: ReadGpus) -> None:
    unreachable, there = read_gpus({"nvmlDeviceGetHandleByIndex_v2": "!15"}, HEALTHY).gpus
    assert (unreachable.is_lost, unreachable.unread) == (True, {"device": "GPU is lost"})
    assert replace(there, index=0, bus_id=EXPECTED.bus_id) == EXPECTED
    [later] = read_gpus({**HEALTHY, "nvmlDeviceGetMemoryInfo": "!15"}).gpus
    assert later.is_lost


def test_xids_of_the_last_two_hours_are_told_by_the_kernels_log_and_by_the_driver(read_gpus: ReadGpus) -> None:
    def record(seconds_ago: float, bus: str, rest: str) -> str:
        return f"4,77,{int((time.monotonic() - seconds_ago) * 1e6)},-;NVRM: Xid (PCI:0000:{bus}:00): {rest}\n"

    log = (
        "6,1,5,-;Linux version 6.8\n"
        + record(60, "10", "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        + record(60, "12", "31, pid=7, name=python, Ch 00000008")
        + (record(7300, "10", "48, pid=7") if time.monotonic() > 7400 else "")
    )
    assert [gpu.xids for gpu in read_gpus(HEALTHY, HEALTHY, log=log, nvmlEventSetWait_v2="1 74").gpus] == [(79,), (74,)]


def test_a_process_of_another_launcher_is_foreign_and_one_of_ours_is_not(read_gpus: ReadGpus, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, parent in {4711: 4700, 4700: os.getppid(), 4800: 1}.items():
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (python (x)) S {parent} 1 1 0")
    [gpu] = read_gpus({**HEALTHY, "nvmlDeviceGetComputeRunningProcesses_v3": "4711 4800 4900"}, proc=proc).gpus
    assert gpu.processes == (4800, 4900)


@pytest.mark.parametrize(
    ("system", "error"),
    [
        ({"nvmlInitWithFlags": "!9"}, "NVML cannot be initialized: Driver Not Loaded"),
        ({"nvmlDeviceGetCount_v2": "!999"}, "NVML does not list the GPUs: Unknown Error"),
        ({"nvmlDeviceGetCount_v2": "0"}, "NVML lists no GPU"),
        ({"nvmlDeviceGetCount_v2": "crash"}, "the process that asks NVML ended with -6: "),
    ],
)
def test_a_driver_in_trouble_is_quoted(read_gpus: ReadGpus, system: dict[str, str], error: str) -> None:
    cards = read_gpus(HEALTHY, **system)
    assert cards.error.startswith(error)
    assert (cards.has_driver, cards.gpus) == (True, ())


def test_a_driver_that_never_answers_is_not_waited_for(read_gpus: ReadGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_TIMEOUT_SECONDS", 2.0)
    assert read_gpus({**HEALTHY, "nvmlDeviceGetName": "hang"}).error == "NVML does not answer within 2 s"


def test_a_missing_driver_and_a_missing_binding_are_reported(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = gpus.gpus("/none/libnvidia-ml.so.1")
    assert "no /none/libnvidia-ml.so.1 here, so GPUs were not looked at" in absent.error
    assert absent == NvmlReport(error=absent.error, has_driver=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    without_package = "nvidia-ml-py is not installed, so GPUs were not looked at"
    assert read(library) == NvmlReport(error=without_package, has_driver=False)
