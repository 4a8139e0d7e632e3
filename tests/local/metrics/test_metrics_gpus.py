"""GPUs of ranks by a real aggregator, and a compiled library with the entry points of NVML."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import fake_nvml
from tests.fake_nvml import HEALTHY, rank_of_gpu
from tests.support.metrics_processes import aggregator

UTILIZATION = "ddp_gpu_utilization_ratio"


def test_a_driver_that_does_not_answer_holds_up_no_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, boards = tmp_path / "gate", tmp_path / "boards"
    os.mkfifo(gate)
    boards.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(fake_nvml.compiled(tmp_path)).parent))
    monkeypatch.setenv(fake_nvml.ANSWERS, str(tmp_path / "answers"))
    fake_nvml.answers(tmp_path / "answers", {**HEALTHY, "nvmlDeviceGetUtilizationRates": f"gate {gate}"})
    rank_of_gpu(boards, 0, HEALTHY["nvmlDeviceGetUUID"])
    with aggregator(boards) as running:
        with gate.open("w") as answer:  # opens when the aggregator waits for the driver
            seen = running.scrape()
            assert seen.value("ddp_steps_total", rank="0") == 0
            assert seen.value("ddp_gpu_memory_used_bytes", rank="0") is None
            fake_nvml.answers(tmp_path / "answers", HEALTHY)
            answer.write("on\n")
        seen = running.scrape_until(lambda scrape: scrape.value("ddp_gpu_memory_used_bytes", rank="0") is not None)
        assert seen.value(UTILIZATION, rank="0") is None
        seen = running.scrape_until(lambda scrape: scrape.value(UTILIZATION, rank="0") is not None)
        assert seen.value(UTILIZATION, rank="0") == 0.97
        assert seen.value("ddp_gpu_throttled", rank="0", reason="power_cap") == 0
