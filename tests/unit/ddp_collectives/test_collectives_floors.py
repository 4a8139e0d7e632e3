"""Floors are data with sources, and what is below one is said in a sentence with both figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddp_collectives.errors import BadRequest
from ddp_collectives.result import Result
from ddp_collectives.thresholds import (
    MACHINES,
    DeviceThroughput,
    Thresholds,
    read_thresholds,
    slow_all_reduces,
    threshold_violations,
    thresholds_for,
)
from ddp_trainer.common.gpu_specs import FIGURES
from tests.support.collective_results import a_result

H100 = "NVIDIA H100 80GB HBM3"
GIB = 1 << 30


def test_every_machine_has_a_source_and_a_gpu_whose_figures_are_known() -> None:
    for machine in MACHINES:
        assert machine.source.startswith("https://")
        assert any(figures.begin.startswith(machine.begin) for figures in FIGURES)
        assert (
            thresholds_for(next(each.begin for each in FIGURES if each.begin.startswith(machine.begin))).gpus
            == machine.gpus
        )


def test_floors_are_shares_of_the_data_sheet_and_of_what_azure_demands() -> None:
    floors = thresholds_for(H100)
    assert floors.matmul_flops == pytest.approx(0.5 * 989e12)
    assert floors.memory_bytes_per_second == pytest.approx(0.7 * 3.35e12)
    assert floors.host_bytes_per_second == pytest.approx(0.9 * 52e9)
    assert floors.bus_bytes_per_second == pytest.approx(0.9 * 460e9)
    assert thresholds_for("NVIDIA B200").bus_bytes_per_second is None
    assert thresholds_for("some processor") == Thresholds()


FAST = DeviceThroughput(matmul_flops=700e12, memory_bytes_per_second=2.9e12, host_bytes_per_second=54e9)


def test_what_is_below_a_floor_is_said_with_both_figures() -> None:
    assert list(threshold_violations(FAST, thresholds_for(H100))) == []
    slow = DeviceThroughput(matmul_flops=300e12, memory_bytes_per_second=1e12, host_bytes_per_second=12e9)
    assert list(threshold_violations(slow, thresholds_for(H100))) == [
        "multiplies matrices at 300 TFLOP/s, below the floor of 494",
        "copies in its memory at 1 TB/s, below the floor of 2.35",
        "copies to or from the host at 12 GB/s, below the floor of 46.8",
    ]
    assert list(threshold_violations(slow, Thresholds())) == []


def all_reduce(size: int, gigabytes: float, name: str = "all_reduce") -> Result:
    seconds = size / (gigabytes * 1e9)
    return a_result(name, size, [seconds] * 3)


def test_a_bus_is_judged_by_large_messages_of_a_whole_machine() -> None:
    floors = thresholds_for(H100)
    slow = [all_reduce(GIB, 300.0), all_reduce(GIB >> 1, 100.0), all_reduce(GIB, 100.0, "all_gather")]
    told = "all_reduce of 1 GiB has a bus bandwidth of 300 GB/s, below the floor of 414"
    assert list(slow_all_reduces(slow, floors, gpus=8, hosts=1)) == [told]
    assert list(slow_all_reduces(slow, floors, gpus=4, hosts=1)) == []
    assert list(slow_all_reduces(slow, floors, gpus=8, hosts=2)) == []
    assert list(slow_all_reduces([all_reduce(GIB, 470.0)], floors, gpus=8, hosts=1)) == []


def test_a_sites_own_floors_win(tmp_path: Path) -> None:
    file = tmp_path / "floors.json"
    file.write_text(json.dumps({"NVIDIA H100": {"matmul_flops": 6e14}}))
    own = read_thresholds(str(file))
    assert thresholds_for(H100, own) == Thresholds(matmul_flops=6e14)
    assert thresholds_for("NVIDIA H200", own) == thresholds_for("NVIDIA H200")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a JSON object of names"),
        ("[1]", "is not a JSON object of names"),
        ('{"cpu": 7}', "is not a JSON object of names"),
        ('{"cpu": {"speed": 7}}', "has 'speed' of 'cpu'; there are bus_bytes_per_second, gpus, "),
        ('{"cpu": {"matmul_flops": "7"}}', "has 'matmul_flops' of 'cpu'"),
        ('{"cpu": {"matmul_flops": true}}', "has 'matmul_flops' of 'cpu'"),
    ],
)
def test_a_file_that_cannot_be_meant_gets_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "floors.json"
    file.write_text(content)
    with pytest.raises(BadRequest, match="--floors") as caught:
        read_thresholds(str(file))
    assert sentence in str(caught.value)
    with pytest.raises(BadRequest, match="cannot be read: No such file"):
        read_thresholds(str(tmp_path / "none"))
