"""Health of the GPUs that the ranks of a node use, by index, UUID or slice, before the node joins again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_trainer.preflight.gpu_health import check_gpus
from ddp_trainer.preflight.nvml import GpuInventory
from ddp_trainer.preflight.schema import Gpu, Status
from tests.support.preflight_reports import WHOLE_GPU


def a_gpu(index: int, **more: object) -> Gpu:
    return replace(WHOLE_GPU, index=index, uuid=f"GPU-{index}{index}ab", **more)  # type: ignore[arg-type] # any field


@pytest.mark.parametrize(
    ("devices", "ill"),
    [
        (["0", "1"], []),
        (["2"], [2]),
        (["0", "2", "3"], [2, 3]),
        (["GPU-33ab"], [3]),
        (["GPU-22"], [2]),
        (["MIG-5f"], [2, 3]),
    ],
)
def test_other_gpus_of_the_machine_do_not_count(devices: list[str], ill: list[int]) -> None:
    cards = GpuInventory(gpus=(a_gpu(0), a_gpu(1), a_gpu(2, needs_reset=True), a_gpu(3, is_lost=True)))
    found = check_gpus("worker-1", cards, devices)
    assert [finding.message.split(" (")[0] for finding in found] == [f"GPU {index}" for index in ill]
    assert all((finding.node, finding.status) == ("worker-1", Status.FAIL) for finding in found)


def test_links_count_and_processes_do_not() -> None:
    cards = GpuInventory(gpus=(a_gpu(0, nvlinks_up=18, processes=(7,)), a_gpu(1, nvlinks_up=17, processes=(8,))))
    assert [finding.check for finding in check_gpus("w", cards, ["0", "1"])] == ["gpu-links"]


@pytest.mark.parametrize(("has_driver", "fails"), [(True, True), (False, False)])
def test_a_driver_that_does_not_answer_fails_and_one_that_is_not_there_does_not(has_driver: bool, fails: bool) -> None:
    cards = GpuInventory(error="NVML does not answer within 20 s", has_driver=has_driver)
    assert [finding.status for finding in check_gpus("w", cards, ["0"])] == ([Status.FAIL] if fails else [])
