"""The checks of ``bench gpu`` on CPU tensors and gloo: their logic, their processes and their reports, not CUDA."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_checks.check_runner import ROOT, command_of, environment, run_check
from bench.gpu_checks.registry import CHECKS, check_of
from tests.support.programs import captured

SECONDS = 900.0
"""The limit of a check: no bar, only patience with a busy machine."""
pytestmark = pytest.mark.timeout(1000)


def rehearsed(letter: str, tmp_path: Path) -> dict[str, Any]:
    """The report of a check that was run without a GPU."""
    file, check = tmp_path / f"{letter}.json", check_of(letter)
    command = command_of(check, device="cpu", is_small=True, seconds=SECONDS, file=file)
    found = run_check(check, command, SECONDS, file)
    assert found["status"] in {"passed", "failed", "partial"}, (found, file.with_suffix(".log").read_text()[-3000:])
    return found


def bars(found: dict[str, Any]) -> dict[str, bool]:
    return {bar["what"]: bar["holds"] for bar in found["bars"]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("letter", "count", "figures"),
    [
        ("A", 2, {"c_compilers_count"}),
        ("B", 3, {"plain_forked_count", "asking_forked_count"}),
        ("D", 6, {"stuck_seconds", "device_used_again_seconds"}),
        ("E", 3, {"cycles_count"}),
        ("F1", 9, {f"survivors_{fault}_until_all_step_count" for fault in ("killed", "stopped", "left")}),
        ("F2", 8, {f"restarts_{fault}_until_all_step_count" for fault in ("killed", "stopped", "left")}),
        ("N", 3, {"metrics_count", "model_flops_per_second"}),
        ("P", 7, {"step_seconds"}),
        ("Q", 3, set()),
        ("S", 4, set()),
        ("I", 8, set()),
        ("J", 2, {"50mb_warm_stall_seconds", "50mb_resume_bytes_per_second"}),
        ("K", 3, {"trainer_step_seconds", "by_hand_after_step_seconds", "synchronizations_of_a_step_count"}),
        ("M", 2, set()),
    ],
)
def test_a_check_comes_to_its_end_without_a_gpu_and_what_it_requires_holds(
    letter: str, count: int, figures: set[str], tmp_path: Path
) -> None:
    found = rehearsed(letter, tmp_path)
    # How long anything takes is for `bench gpu` to judge.
    assert [what for what, holds in bars(found).items() if not holds and "seconds" not in what] == []
    assert len(found["bars"]) == count
    assert figures <= set(found["figures"])


def test_faults_of_a_device_are_told_apart_from_lost_peers(tmp_path: Path) -> None:
    found = bars(rehearsed("H", tmp_path))
    for fault in ("assert", "address", "memory"):
        of_it = {what.partition(": ")[2]: holds for what, holds in found.items() if what.startswith(f"{fault}: ")}
        assert len(of_it) == (5 if fault == "address" else 4)
        assert of_it["it is not reported as a lost peer"]
        assert all(
            holds for what, holds in of_it.items() if what.startswith(("the message has", "the run ended", "after a"))
        )
    for reason in ("assert: the reason 'python_exception'", "memory: the reason 'gpu_oom'"):
        assert [holds for what, holds in found.items() if what.startswith(reason)] == [True]


def test_every_check_is_rehearsed() -> None:
    text = Path(__file__).read_text()
    assert [check.letter for check in CHECKS if f'"{check.letter}"' not in text] == []


def test_a_rehearsal_by_the_one_command_is_told_as_such_and_never_becomes_a_claim(tmp_path: Path) -> None:
    variables = environment() | {"DDP_BENCH_GPU_DEVICE": "cpu"}
    done = captured(
        [sys.executable, "-m", "bench", "gpu", "--quick", "--only", "C", "--out", str(tmp_path)],
        cwd=ROOT,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    started, ended, last = map(json.loads, done.stdout.splitlines())
    assert (started, ended["status"]) == ({"check": "C", "status": "started"}, "passed")
    assert (last["device"], last["summary"]) == ("cpu", {"C": "passed"})
    assert "this shows nothing about GPUs" in done.stderr
    page = (ROOT / "docs" / "status.md").read_text()
    refused = captured([sys.executable, "-m", "bench.gpu_checks.report", str(tmp_path / "report.json")], cwd=ROOT)
    assert refused.returncode == 2
    assert (ROOT / "docs" / "status.md").read_text() == page
