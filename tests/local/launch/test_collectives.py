"""``ddp-launch collectives`` on real gloo ranks, and its negative control: ranks whose results are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_collectives.request import DTYPES, NAMES

LAUNCH = Path(sys.executable).with_name("ddp-launch")
FLAWED = Path(__file__).with_name("collectives_flawed.py")
QUICK = ["--sizes", "4000,64KiB", "--repeats", "3", "--warmup", "1"]


def launched(*words: str | Path, code: int) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "TORCHEL"))}
    done = subprocess.run([LAUNCH, *words], capture_output=True, text=True, timeout=120, check=False, env=clean)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what three ranks measured."""
    words = ["collectives", "--nproc-per-node", "3", "--dtype", ",".join(DTYPES), *QUICK, "-o", "json"]
    file = tmp_path_factory.mktemp("collectives") / "run.json"
    file.write_text(launched(*words, code=0).stdout)
    return file


def test_every_collective_is_right_in_every_dtype(run: Path) -> None:
    document = json.loads(run.read_text())
    assert (document["apiVersion"], document["kind"]) == ("preflight.ddp/v1", "Collectives")
    assert document["unsupported"] == []
    assert (document["backend"], document["world_size"], len(document["ranks"])) == ("gloo", 3, 3)
    found = {(result["operation"], result["dtype"]) for result in document["results"]}
    assert found == {(name, dtype) for name in NAMES for dtype in DTYPES if name != "barrier"} | {("barrier", "")}
    assert all(result["wrong"] == [] for result in document["results"])


def test_sizes_are_what_travelled_and_bandwidths_follow_from_them(run: Path) -> None:
    results = {
        (each["operation"], each["size_bytes"]): each
        for each in json.loads(run.read_text())["results"]
        if each["dtype"] == "float32"
    }
    assert {size for name, size in results if name == "all_reduce"} == {4000, 65536}
    assert {size for name, size in results if name == "all_gather"} == {3996, 65532}
    for name, factor in {"all_reduce": 4 / 3, "all_gather": 2 / 3, "broadcast": 1, "send_recv": 1}.items():
        for result in (each for (operation, _), each in results.items() if operation == name):
            seconds, size = result["seconds"], result["size_bytes"]
            assert 0 < seconds["minimum"] <= seconds["median"] <= seconds["maximum"]
            assert result["algorithm_bytes_per_second"] == pytest.approx(size / seconds["median"])
            assert result["bus_bytes_per_second"] == pytest.approx(factor * size / seconds["median"])


def test_a_run_that_is_slower_than_an_earlier_one_says_so_and_exits_with_3(run: Path, tmp_path: Path) -> None:
    earlier: dict[str, Any] = json.loads(run.read_text())
    for result in earlier["results"]:
        result["seconds"] |= {key: time / 1e4 for key, time in result["seconds"].items() if key != "count"}
    fast = tmp_path / "fast.json"
    fast.write_text(json.dumps(earlier))
    words = ["--nproc-per-node", "3", "--operations", "all_reduce,barrier", *QUICK, "--compare", fast]
    done = launched("collectives", *words, code=3)
    assert f"3 of 3 measurements are slower than in {fast}, the most: " in done.stderr
    assert done.stdout.count("  slower (") == 3


def test_wrong_results_are_named_by_rank_and_element_and_what_a_backend_lacks_is_said() -> None:
    names = "all_reduce,all_gather,broadcast,barrier,reduce,scatter"
    done = launched("--nproc-per-node", "2", FLAWED, "--operations", names, *QUICK, code=1)
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        *[("all_reduce", "right"), ("all_reduce", "WRONG")],  # the smaller one has no element 1000
        *[("all_gather", "WRONG")] * 2,
        *[("broadcast", "WRONG")] * 2,
        ("barrier", "WRONG"),
        ("reduce", "type"),
        *[("scatter", "right")] * 2,
    ]
    assert "not supported: Invalid scalar type" in done.stdout
    assert "all_reduce float32 of 64 KiB: rank 1 got" in done.stderr
    assert "at element 1000, the only wrong one." in done.stderr
    assert "all_gather float32 of 3.906 KiB: rank 0 got" in done.stderr
    assert "broadcast float32 of 64 KiB: rank 1 got 127 for" in done.stderr
    assert "barrier: rank 0 got 1 for 2 at element 0, the only wrong one." in done.stderr


def test_a_device_below_a_floor_is_named_by_rank_and_exits_with_3(tmp_path: Path) -> None:
    floors = tmp_path / "floors.json"
    floors.write_text(json.dumps({"cpu": {"matmul_flops": 9e17, "memory_bytes_per_second": 1}}))
    words = ["--nproc-per-node", "2", "--operations", "barrier", *QUICK, "--floors", floors, "-o", "json"]
    done = launched("collectives", *words, code=3)
    document = json.loads(done.stdout)
    assert [each["name"] for each in document["devices"]] == ["cpu", "cpu"]
    assert all(each["speeds"]["host_bytes_per_second"] > 0 for each in document["devices"])
    for rank in range(2):
        assert f"collectives: Rank {rank} on " in done.stderr
    assert "(cpu) multiplies matrices at " in done.stderr
    assert "TFLOP/s, below the floor of 9e+05." in done.stderr
    assert "copies in its memory" not in done.stderr
