"""``ddp-launch collectives`` on real gloo ranks, and its negative control: ranks whose results are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ddp_collectives.flags import OPERATIONS, parse
from tests.support.programs import captured

LAUNCH = Path(sys.executable).with_name("ddp-launch")
FLAWED = Path(__file__).with_name("collectives_flawed.py")
QUICK = ["--sizes", "4000,64KiB", "--repeats", "3", "--warmup", "1"]


def launched(*words: str | Path, code: int) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "TORCHEL"))}
    done = captured([LAUNCH, *words], timeout=120, env=clean)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what three ranks measured."""
    file = tmp_path_factory.mktemp("collectives") / "run.json"
    file.write_text(launched("collectives", "--nproc-per-node", "3", *QUICK, "-o", "json", code=0).stdout)
    return file


def test_every_collective_is_right(run: Path) -> None:
    document = json.loads(run.read_text())
    assert (document["apiVersion"], document["kind"]) == ("preflight.ddp/v1", "Collectives")
    assert (document["backend"], document["world_size"], len(document["ranks"])) == ("gloo", 3, 3)
    assert {result["operation"] for result in document["results"]} == set(OPERATIONS)
    assert all(result["wrong"] == [] for result in document["results"])


def test_sizes_are_what_travelled_and_bandwidths_follow_from_them(run: Path) -> None:
    results = {(item["operation"], item["size_bytes"]): item for item in json.loads(run.read_text())["results"]}
    assert {size for name, size in results if name == "all_reduce"} == {4000, 65536}
    assert {size for name, size in results if name == "all_gather"} == {3996, 65532}
    for name, factor in {"all_reduce": 4 / 3, "all_gather": 2 / 3, "broadcast": 1, "send_recv": 1}.items():
        for result in (item for (operation, _), item in results.items() if operation == name):
            seconds, size = result["seconds"], result["size_bytes"]
            assert 0 < seconds["minimum"] <= seconds["median"] <= seconds["maximum"]
            assert result["algorithm_bytes_per_second"] == pytest.approx(size / seconds["median"])
            assert result["bus_bytes_per_second"] == pytest.approx(factor * size / seconds["median"])


def flawed(operations: str) -> subprocess.CompletedProcess[str]:
    request, _ = parse(["--operations", operations, *QUICK])
    return launched("--nproc-per-node", "2", FLAWED, json.dumps(asdict(request)), code=1)


def test_wrong_results_are_named_by_rank_and_element() -> None:
    done = flawed("all_reduce,all_gather,broadcast,all_to_all")
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        *[("all_reduce", "right"), ("all_reduce", "WRONG")],  # the smaller one has no element 1000
        *[("all_gather", "WRONG")] * 2,
        *[("broadcast", "WRONG")] * 2,
        *[("all_to_all", "right")] * 2,
    ]
    assert "all_reduce of 64 KiB: rank 1 got" in done.stderr
    assert "at element 1000, 1 of 16384 elements are wrong." in done.stderr
    assert "all_gather of 3.906 KiB: rank 0 got" in done.stderr
    assert "broadcast of 64 KiB: rank 1 got 127 for" in done.stderr


def test_what_a_backend_lacks_ends_the_run_with_its_message() -> None:
    assert "reduce_scatter of 3.906 KiB failed on rank" in flawed("reduce_scatter").stderr
