"""The frame of ``bench gpu``: limits, order, failures and reports, with real processes in the place of checks."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_checks import check_runner
from bench.gpu_checks.check_report import CheckReport
from bench.gpu_checks.check_runner import ROOT, limits_of, run_check, run_phases
from bench.gpu_checks.registry import CHECKS, Check
from bench.measurements import gpu
from tests.support.programs import captured

HOLDS = {"what": "a thing", "figure": 1.0, "bar": 1.0, "holds": True, "relation": ">="}
BREAKS = HOLDS | {"what": "another thing", "holds": False, "figure": 0.0}


def a_check(letter: str, phase: int = 0, limit: float = 20.0, **more: Any) -> Check:
    given = {"value": 1, "least_seconds": 0.5, **more}
    return Check(letter=letter, module="none", title="a check", phase=phase, limit_seconds=limit, **given)


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
    return run_check(a_check("X"), [*script(body), str(file)], seconds, file)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (f"save(bars=[{HOLDS!r}])", "passed", ""),
        (f"save(bars=[{HOLDS!r}, {BREAKS!r}])", "failed", "another thing"),
        (f"save(bars=[{HOLDS!r}], unsupported={{'compiled': 'no time'}})", "partial", "without compiled"),
        ("save(reason='this torch has no NCCL')", "not supported", "this torch has no NCCL"),
        ("print('no memory', file=sys.stderr); sys.exit(3)", "crashed", "exit code 3: no memory"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "crashed", "signal SIGABRT: no output"),
        ("pass", "crashed", "it ended without a result"),
        ("open(sys.argv[1], 'w').write('{')", "crashed", "it ended without a result"),
    ],
)
def test_a_check_is_reported_with_its_status_and_reason(tmp_path: Path, body: str, status: str, reason: str) -> None:
    found = ran(tmp_path, body)
    assert (found["status"], found["reason"]) == (status, reason)


def test_a_check_that_crashes_keeps_what_it_found_before(tmp_path: Path) -> None:
    for end, status in (("", "passed"), ("; sys.exit(1)", "crashed")):
        found = ran(tmp_path, f"save(bars=[{HOLDS!r}], figures={{'some_seconds': 2.0}}){end}")
        assert (found["status"], found["figures"]) == (status, {"some_seconds": 2.0})


def test_what_an_earlier_run_has_left_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "X.json").write_text(json.dumps({"bars": [HOLDS]}))
    assert ran(tmp_path, "pass")["status"] == "crashed"


def is_running(pid: str) -> bool:
    """Return True if a process runs and is not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_check_past_its_limit_is_killed_with_processes_of_other_sessions_and_parents(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    below = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-c', {below!r}, {str(pids)!r}], start_new_session=True)"
    between = f"import subprocess, sys\n{start}"
    body = (
        f"{start}\nsubprocess.run([sys.executable, '-c', {between!r}])\n"
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
    assert [pid for pid in started if is_running(pid)] == []


def run(tmp_path: Path, checks: list[Check], bodies: dict[str, str], budget: float, **more: Any) -> list[str]:
    """Run checks in phases, and return what was reported, in its order."""
    messages: list[str] = []

    def emit(result: dict[str, Any]) -> None:
        messages.append(" ".join(filter(None, (result["check"], result["status"], result.get("reason", "")))))

    def command(check: Check, _: float, file: Path) -> list[str]:
        return [*script(bodies[check.letter]), str(file)]

    end = time.monotonic() + budget + check_runner.SUMMARY_SECONDS
    run_phases(checks, command, tmp_path, emit=emit, end=end, **more)
    return messages


PASSES = f"save(bars=[{HOLDS!r}])"


def test_checks_of_a_phase_run_at_once_and_a_failure_ends_no_other(tmp_path: Path) -> None:
    """A waits for a file that B makes; they can only pass together."""
    file = tmp_path / "made"
    bodies = {
        "A": f"open({str(file)!r}, 'w')\n{PASSES}",
        "B": f"while not os.path.exists({str(file)!r}): time.sleep(0.01)\n{PASSES}",
        "C": "sys.exit(1)",
        "D": PASSES,
    }
    report = run(tmp_path, [a_check("A"), a_check("B"), a_check("C", 1), a_check("D", 2)], bodies, 100.0)
    assert sorted(report[:4]) == ["A passed", "A started", "B passed", "B started"]
    assert report[4:] == ["C started", "C crashed exit code 1: no output", "D started", "D passed"]


def test_a_check_that_cannot_be_killed_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared: list[int] = []
    monkeypatch.setattr(check_runner, "kill_process", spared.append)
    begun = time.monotonic()
    report = run(tmp_path, [a_check("A", limit=1.0), a_check("B", 1)], {"A": "time.sleep(600)", "B": PASSES}, 20.0)
    assert time.monotonic() - begun < 20.0 + 15.0
    assert report[1] == "A stuck in the driver its processes are alive 5 s after SIGKILL"
    assert report[-1] == "B passed"
    monkeypatch.undo()
    [stuck] = check_runner.STUCK
    assert set(spared) == {stuck.pid}
    stuck.kill()
    stuck.wait()
    check_runner.STUCK.clear()


def test_a_check_waits_for_the_one_that_must_pass_first(tmp_path: Path) -> None:
    checks = [a_check("P"), a_check("F", 1, after="P")]
    assert run(tmp_path, checks, {"P": f"save(bars=[{BREAKS!r}])"}, 50.0)[-1] == "F not run check P did not pass"
    assert run(tmp_path, checks, {"P": PASSES, "F": PASSES}, 50.0)[-1] == "F passed"
    assert run(tmp_path, checks[1:], {"F": PASSES}, 50.0) == ["F started", "F passed"], "with --only F"


def test_after_a_gpu_that_does_not_answer_nothing_is_started(tmp_path: Path) -> None:
    answers = iter([True, False])
    checks = [a_check("A", 0, probes=True), a_check("B", 1, probes=True), a_check("C", 2)]
    report = run(tmp_path, checks, {"A": PASSES}, 50.0, answers=lambda: next(answers))
    assert report[2:] == ["B not run the GPU does not answer", "C not run the GPU does not answer"]


def test_a_short_budget_takes_from_the_checks_of_the_least_value() -> None:
    checks = [a_check("A", 0, 20.0, value=1), a_check("B", 1, 40.0, value=3), a_check("C", 2, 40.0, value=2)]
    assert limits_of(checks, 100.0) == {"A": 20.0, "B": 40.0, "C": 40.0}
    assert limits_of(checks, 90.0) == {"A": 20.0, "B": 30.0, "C": 40.0}
    assert limits_of(checks, 50.5) == {"A": 20.0, "B": 0.5, "C": 30.0}
    assert limits_of(checks, 10.5) == {"A": 9.5, "B": 0.5, "C": 0.5}
    assert limits_of(checks, 0.75) == {"A": 0.5, "B": 0.0, "C": 0.25}


def test_a_check_for_which_no_time_is_left_is_not_started_and_named(tmp_path: Path) -> None:
    checks = [a_check("A", 0, 3.0, value=1, least_seconds=3.0), a_check("B", 1, 3.0, value=2, least_seconds=2.0)]
    report = run(tmp_path, checks, {"A": "time.sleep(600)"}, 4.0)
    assert report[1:] == ["A timed out it did not end within 3 s", "B not run 1 s of the budget were left for it"]


def test_without_a_gpu_every_check_is_reported_as_not_run_and_the_exit_code_is_0(tmp_path: Path) -> None:
    if gpu.has_device_files():
        pytest.skip("there is a GPU")
    command, env = [sys.executable, "-m", "bench", "gpu", "--out", str(tmp_path)], {"DDP_BENCH_COMMIT": "abc"}
    done = captured(command, cwd=ROOT, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    *lines, last = map(json.loads, done.stdout.splitlines())
    found = [(line["check"], line["status"], line["log"]) for line in lines]
    assert found == [(check.letter, "not run", "no GPU") for check in CHECKS]
    assert last["summary"] == {check.letter: "not run" for check in CHECKS}
    report = json.loads((tmp_path / "report.json").read_text())
    assert [check["check"] for check in report["checks"]] == [check.letter for check in CHECKS]
    assert (report["machine"]["gpu"], report["commit"]) == ("", "abc")
    assert (tmp_path / "all.log").read_text() == done.stderr


@pytest.mark.parametrize(("flag", "value"), [("budget", "3"), ("out", "x")])
def test_a_measurement_without_a_budget_or_files_refuses_them(flag: str, value: str) -> None:
    command = [sys.executable, "-m", "bench", "exits", f"--{flag}", value]
    done = captured(command, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, f"bench: exits cannot be measured here: It has no --{flag}.\n")


def result_of(letter: str, **more: Any) -> dict[str, Any]:
    empty = {"title": "t", "status": "passed", "reason": "", "seconds": 1.0, "log": "", "figures": {}, "bars": []}
    return {"check": letter, **empty, **more}


def a_run(tmp_path: Path) -> tuple[gpu.GpuRun, list[dict[str, Any]], list[int]]:
    emitted: list[dict[str, Any]] = []
    codes: list[int] = []
    options = gpu.Options(progress=lambda _: None, emit=lambda line: emitted.append(dict(line)))
    made = gpu.GpuRun(options, tmp_path / "out", "cuda", exit_now=codes.append)
    made.files = tmp_path
    return made, emitted, codes


def test_report_and_logs_are_replaced_after_every_check(tmp_path: Path) -> None:
    made, emitted, _ = a_run(tmp_path)
    for letter in "AB":
        (tmp_path / f"{letter}.log").write_text(letter)
        made.take({"check": letter, "status": "started"})
        made.take(result_of(letter))
        with tarfile.open(made.folder / "logs.tar") as logs:
            assert logs.getnames() == [f"{item}.log" for item in "AB"[: "AB".index(letter) + 1]]
        assert json.loads((made.folder / "report.json").read_text())["checks"][-1]["check"] == letter
    told = [f"{line['check']} {line['status']}" for line in emitted]
    assert told == ["A started", "A passed", "B started", "B passed"]


def test_past_budget_and_overtime_the_summary_is_printed_and_the_process_ends(tmp_path: Path) -> None:
    made, emitted, codes = a_run(tmp_path)
    made.checks = [a_check("A"), a_check("B")]
    made.take(result_of("A"))
    made.abort_run()
    assert (emitted[-1]["summary"], codes) == ({"A": "passed", "B": "not run"}, [1])
    assert [line["check"] for line in emitted[:-1]] == ["A", "B"]


def test_a_gpu_that_cuda_cannot_use_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(gpu, "DEVICES", tmp_path / "dev")
    options = gpu.Options(progress=lambda _: None, emit=lambda _: None, only=frozenset("A"), out=tmp_path)
    assert not gpu.measure(options).holds
    report = json.loads((tmp_path / "report.json").read_text())
    reason = f"a GPU is there, and CUDA cannot use it: {report['machine']['trouble']}"
    assert [(check["status"], check["reason"]) for check in report["checks"]] == [("not run", reason)]


def test_findings_are_on_the_disk_as_soon_as_they_are_made(tmp_path: Path) -> None:
    findings = CheckReport(file=tmp_path / "found.json")
    findings.at_most("a thing", float("inf"), 2.0)
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["bars"] == [{"what": "a thing", "figure": None, "bar": 2.0, "holds": False, "relation": "<="}]
    findings.mark_unsupported("a part", "a reason")
    findings.add("some_bytes", 3)
    document = json.loads((tmp_path / "found.json").read_text())
    assert (document["unsupported"], document["figures"]) == ({"a part": "a reason"}, {"some_bytes": 3})


def test_the_frame_needs_no_installed_package() -> None:
    program = "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; import bench.measurements.gpu"
    command, blank = [sys.executable, "-S", "-c", f"import sys; {program}"], {"PATH": os.environ["PATH"]}
    done = captured(command, cwd=ROOT, env=blank)
    assert (done.returncode, done.stderr) == (0, "")
    assert gpu.GPU_PROBE.is_file()
