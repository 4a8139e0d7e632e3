"""The frame of ``bench gpu``: limits, order, failures and reports, with real processes in the place of checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_checks.check_report import Bench, CheckReport
from bench.gpu_checks.check_runner import ROOT, run_all, run_check
from bench.gpu_checks.registry import BUDGET_SECONDS, CHECKS, Check
from bench.measurements import gpu

HOLDS = {"what": "a thing", "figure": 1.0, "bar": 1.0, "holds": True, "relation": ">="}
BREAKS = HOLDS | {"what": "another thing", "holds": False, "figure": 0.0}
ALONE = Check(letter="X", module="none", title="a check", limit_seconds=20)


def script(body: str) -> list[str]:
    """A program in the place of a check; ``save`` writes its file, which is its argument."""
    return [
        *(sys.executable, "-c"),
        "import json, os, signal, subprocess, sys, time\n"
        "def save(**found):\n"
        "    with open(sys.argv[1], 'w') as file: json.dump(found, file)\n" + body,
    ]


def ran(tmp_path: Path, body: str, seconds: float = 20.0) -> dict[str, Any]:
    file = tmp_path / "X.json"
    return run_check(ALONE, [*script(body), str(file)], seconds, file)


def test_a_check_whose_bars_hold_passed_and_one_with_a_broken_bar_failed(tmp_path: Path) -> None:
    passed = ran(tmp_path, f"save(bars=[{HOLDS!r}], figures={{'some_seconds': 2.0}})")
    assert (passed["status"], passed["reason"], passed["figures"]) == ("passed", "", {"some_seconds": 2.0})
    failed = ran(tmp_path, f"save(bars=[{HOLDS!r}, {BREAKS!r}])")
    assert (failed["status"], failed["reason"]) == ("failed", "another thing")


def test_a_check_that_the_hardware_does_not_support_is_reported_with_its_reason(tmp_path: Path) -> None:
    found = ran(tmp_path, "save(reason='this torch has no NCCL')")
    assert (found["status"], found["reason"]) == ("not supported", "this torch has no NCCL")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('the last words', file=sys.stderr); sys.exit(3)", "exit code 3: the last words"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "signal SIGABRT: no output"),
        ("pass", "it ended without a result"),
        ("open(sys.argv[1], 'w').write('{')", "it ended without a result"),
    ],
)
def test_a_check_that_crashes_is_reported_with_its_last_words(tmp_path: Path, body: str, reason: str) -> None:
    found = ran(tmp_path, body)
    assert (found["status"], found["reason"]) == ("crashed", reason)


def test_a_check_that_crashes_keeps_what_it_found_before(tmp_path: Path) -> None:
    found = ran(tmp_path, f"save(bars=[{HOLDS!r}], figures={{'some_seconds': 2.0}}); sys.exit(1)")
    assert found["status"] == "crashed"
    assert found["figures"] == {"some_seconds": 2.0}


def test_what_an_earlier_run_has_left_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "X.json").write_text(json.dumps({"bars": [HOLDS]}))
    assert ran(tmp_path, "pass")["status"] == "crashed"


def test_a_check_past_its_limit_is_killed_with_the_processes_that_have_sessions_and_parents_of_their_own(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    below = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(600)"
    between = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {below!r}, {str(pids)!r}], start_new_session=True)"
    )
    body = (
        f"subprocess.Popen([sys.executable, '-c', {below!r}, {str(pids)!r}], start_new_session=True)\n"
        f"subprocess.run([sys.executable, '-c', {between!r}])\n"
        f"while not os.path.exists({str(pids)!r}) or len(open({str(pids)!r}).read().split()) < 2: time.sleep(0.01)\n"
        f"save(bars=[{HOLDS!r}]); time.sleep(600)"
    )
    begun = time.monotonic()
    found = ran(tmp_path, body, seconds=8.0)
    assert time.monotonic() - begun < 60
    assert (found["status"], found["reason"]) == ("timed out", "it did not end within 8 s")
    assert found["bars"] == [HOLDS]
    started = pids.read_text().split()
    assert len(started) == 2
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


def test_children_that_have_nothing_to_do_with_a_check_are_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as mine:
        ran(tmp_path, "sys.exit(1)")
        assert mine.poll() is None
        mine.kill()


def test_checks_run_in_their_order_and_a_failure_does_not_end_the_others(tmp_path: Path) -> None:
    bodies = {
        "A": "sys.exit(1)",
        "B": "time.sleep(600)",
        "C": f"save(bars=[{BREAKS!r}])",
        "D": f"save(bars=[{HOLDS!r}])",
    }
    checks = [Check(letter=letter, module="none", title="t", limit_seconds=2) for letter in "BCAD"]
    told: list[str] = []
    run_all(
        checks,
        lambda check, _, file: [*script(bodies[check.letter]), str(file)],
        tmp_path,
        tell=lambda result: told.append(f"{result['check']} {result['status']}"),
    )
    assert told == ["B timed out", "C failed", "A crashed", "D passed"]


def test_a_check_for_which_no_time_is_left_is_not_started_and_named(tmp_path: Path) -> None:
    checks = [Check(letter=letter, module="none", title="t", limit_seconds=3) for letter in "AB"]
    started: list[tuple[str, float]] = []

    def command(check: Check, seconds: float, file: Path) -> list[str]:
        started.append((check.letter, seconds))
        return [*script("time.sleep(600)"), str(file)]

    first, second = run_all(checks, command, tmp_path, tell=lambda _: None, budget_seconds=4.0)
    assert started == [("A", 3)]
    assert first["status"] == "timed out"
    assert (second["status"], second["reason"]) == ("not run", "the 4 s of this bench were used up")


def test_the_budget_and_the_limits_leave_ten_minutes() -> None:
    assert BUDGET_SECONDS < 600
    assert [check.letter for check in CHECKS] == list("ACFDHIEJKGLBM")
    assert all(check.limit_seconds <= 120 for check in CHECKS)
    assert all((ROOT / "bench" / "gpu_checks" / f"{check.module}.py").is_file() for check in CHECKS)


def command(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", "gpu", *words],
        cwd=ROOT,
        env=os.environ | {"DDP_BENCH_GPU_DIR": str(tmp_path)} | more,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_every_check_is_reported_as_not_run_and_the_exit_code_is_0(tmp_path: Path) -> None:
    if gpu.has_device_files():
        pytest.skip("there is a GPU")
    done = command(tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bars"] == []
    assert [(each["check"], each["status"], each["reason"]) for each in told["checks"]] == [
        (check.letter, "not run", "no GPU") for check in CHECKS
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["checks"] == told["checks"]
    assert report["machine"]["gpu"] == ""
    assert done.stderr.splitlines()[0] == "A driver, versions, compiler and limits: not run: no GPU"


def test_a_gpu_that_cuda_cannot_use_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(gpu, "DEVICES", tmp_path / "dev")
    monkeypatch.setenv("DDP_BENCH_GPU_DIR", str(tmp_path))
    report = gpu.measure(gpu.Options(progress=lambda _: None, only=frozenset("A")))
    assert not report.holds
    [check] = report.details["checks"]
    assert check["status"] == "not run"
    assert check["reason"].startswith("a GPU is there, and CUDA cannot use it: ")
    assert check["reason"].endswith(report.details["gpu"]["trouble"])


def test_findings_are_on_the_disk_as_soon_as_they_are_made(tmp_path: Path) -> None:
    findings = CheckReport(file=tmp_path / "found.json")
    findings.at_most("a thing", float("inf"), 2.0)
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["bars"] == [{"what": "a thing", "figure": None, "bar": 2.0, "holds": False, "relation": "<="}]
    findings.mark_unsupported("a part", "a reason")
    findings.add("some_bytes", 3)
    told = json.loads((tmp_path / "found.json").read_text())
    assert (told["unsupported"], told["figures"]) == ({"a part": "a reason"}, {"some_bytes": 3})


def test_a_folder_of_a_part_is_new(tmp_path: Path) -> None:
    bench = Bench(device="cpu", is_small=True, directory=tmp_path, deadline=0.0, findings=CheckReport())
    assert bench.folder("part").is_dir()
    with pytest.raises(FileExistsError):
        bench.folder("part")
    assert bench.size(full=2, small=1) == 1
