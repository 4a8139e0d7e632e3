"""Readings of the ranks' GPUs, by UUID and field by field, from a compiled library with the entry points of NVML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ddp_trainer.metrics.collect.pod_sampler import FRESH_SECONDS, GpuSampler
from ddp_trainer.metrics.families.family import Source
from ddp_trainer.metrics.families.pod_families import FAMILIES
from ddp_trainer.metrics.serve.collector import Exposition
from ddp_trainer.metrics.storage.mmap_directory import read_pod_snapshot
from tests import fake_nvml
from tests.fake_nvml import HEALTHY, rank_of_gpu
from tests.support.clocks import Clock

IDLE = {
    **HEALTHY,
    "nvmlDeviceGetUUID": "GPU-1a2b",
    "nvmlDeviceGetUtilizationRates": "0 0",
    "nvmlDeviceGetClockInfo:1": "345",
    "nvmlDeviceGetCurrentClocksEventReasons": "0x1",
}
REASONS = ["power_cap", "hardware_slowdown", "software_thermal_slowdown", "hardware_thermal_slowdown", "power_brake"]
OF_HEALTHY = {
    "ddp_gpu_memory_used_bytes": 556.0 * 2**20,
    "ddp_gpu_utilization_ratio": 0.97,
    "ddp_gpu_sm_clock_hertz": 1.755e9,
    "ddp_gpu_sm_clock_max_hertz": 1.98e9,
    **dict.fromkeys((f"ddp_gpu_throttled{{{reason}}}" for reason in REASONS), 0.0),
}

Answer = Callable[..., None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_nvml.compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Set the answers of the library."""
    monkeypatch.setenv(fake_nvml.ANSWERS, str(tmp_path / "answers"))
    return lambda *gpus, **system: fake_nvml.answers(tmp_path / "answers", *gpus, **system)


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    (tmp_path / "boards").mkdir()
    return tmp_path / "boards"


@pytest.fixture
def readings(boards: Path, library: str, clock: Clock) -> GpuSampler:
    return GpuSampler(boards, library, clock)


def values_of(readings: GpuSampler) -> list[Mapping[str, float]]:
    """Return the readings of each rank, in the order of their slots."""
    return [readings.values(slot) for slot in read_pod_snapshot(readings.directory).ranks]


def test_each_rank_has_the_readings_of_its_own_gpu(readings: GpuSampler, boards: Path, answer: Answer) -> None:
    rank_of_gpu(boards, 0, "GPU-5d6e")
    rank_of_gpu(boards, 1, "GPU-1a2b")
    answer(IDLE, {**HEALTHY, "nvmlDeviceGetCurrentClocksEventReasons": "0x24"})
    readings.read()
    throttled = {"ddp_gpu_throttled{power_cap}": 1.0, "ddp_gpu_throttled{software_thermal_slowdown}": 1.0}
    idle = {"ddp_gpu_utilization_ratio": 0.0, "ddp_gpu_sm_clock_hertz": 3.45e8}
    assert values_of(readings) == [OF_HEALTHY | throttled, OF_HEALTHY | idle]


def test_a_scrape_shows_every_family_of_nvml_and_the_uuid(readings: GpuSampler, boards: Path, answer: Answer) -> None:
    rank_of_gpu(boards, 0, "GPU-5d6e")
    rank_of_gpu(boards, 1, "")
    answer(HEALTHY)
    readings.read()
    samples = [sample for family in Exposition(boards, "digits", gpus=readings).collect() for sample in family.samples]
    of_nvml = {family.name for family in FAMILIES if family.source is Source.NVML}
    found = {(sample.name, sample.labels["rank"]) for sample in samples if sample.name in of_nvml}
    assert found == {(name, "0") for name in of_nvml}
    uuids = {sample.labels["rank"]: sample.labels["gpu_uuid"] for sample in samples if sample.name == "ddp_rank_info"}
    assert uuids == {"0": HEALTHY["nvmlDeviceGetUUID"], "1": ""}


@pytest.mark.parametrize(
    ("function", "series"),
    [
        ("nvmlDeviceGetMemoryInfo", "ddp_gpu_memory_used_bytes"),
        ("nvmlDeviceGetUtilizationRates", "ddp_gpu_utilization_ratio"),
        ("nvmlDeviceGetClockInfo:1", "ddp_gpu_sm_clock_hertz"),
        ("nvmlDeviceGetMaxClockInfo:1", "ddp_gpu_sm_clock_max_hertz"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "ddp_gpu_throttled"),
    ],
)
@pytest.mark.parametrize("error", ["!3", "!999"], ids=["not-supported", "unknown-error"])
def test_a_field_that_cannot_be_read_takes_no_other_with_it(
    readings: GpuSampler, boards: Path, answer: Answer, function: str, series: str, error: str
) -> None:
    rank_of_gpu(boards, 0, "GPU-5d6e")
    answer({**HEALTHY, function: error})
    readings.read()
    assert values_of(readings) == [{key: value for key, value in OF_HEALTHY.items() if key.partition("{")[0] != series}]


def test_an_old_driver_has_the_reasons_by_their_old_name(
    boards: Path, tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})
    rank_of_gpu(boards, 0, "GPU-5d6e")
    answer({**HEALTHY, "nvmlDeviceGetCurrentClocksThrottleReasons": "0x80"})
    old = GpuSampler(boards, fake_nvml.compiled(tmp_path, "-DOLD_DRIVER"))
    old.read()
    assert values_of(old) == [OF_HEALTHY | {"ddp_gpu_throttled{power_brake}": 1.0}]


def test_a_gpu_that_nvml_does_not_list_has_no_series(readings: GpuSampler, boards: Path, answer: Answer) -> None:
    rank_of_gpu(boards, 0, "GPU-gone")
    rank_of_gpu(boards, 1, "GPU-5d6e")
    answer(HEALTHY)
    readings.read()
    assert values_of(readings) == [{}, OF_HEALTHY]


def test_the_library_is_loaded_for_the_first_gpu_and_not_before(boards: Path) -> None:
    rank_of_gpu(boards, 0, "")
    readings = GpuSampler(boards, "/nowhere/libnvidia-ml.so.1")
    readings.read()
    assert values_of(readings) == [{}]
    rank_of_gpu(boards, 1, "GPU-5d6e")
    with pytest.raises(OSError, match="libnvidia-ml"):
        readings.read()
    assert values_of(readings) == [{}, {}]


def test_a_driver_that_is_not_loaded_yet_is_tried_again(readings: GpuSampler, boards: Path, answer: Answer) -> None:
    rank_of_gpu(boards, 0, "GPU-5d6e")
    answer(HEALTHY, nvmlInitWithFlags="!9")
    readings.read()
    assert values_of(readings) == [{}]
    answer(HEALTHY)
    readings.read()
    assert values_of(readings) == [OF_HEALTHY]


def test_a_reading_that_is_old_is_left_out(readings: GpuSampler, boards: Path, answer: Answer, clock: Clock) -> None:
    rank_of_gpu(boards, 0, "GPU-5d6e")
    answer(HEALTHY)
    readings.read()
    clock.now += FRESH_SECONDS
    assert values_of(readings) == [OF_HEALTHY]
    answer({**HEALTHY, "nvmlDeviceGetUUID": "!15"})
    readings.read()
    clock.now += 1.0
    assert values_of(readings) == [{}]
