"""The progress of a job that a command waits for: on a terminal, and in a pipe."""

from __future__ import annotations

import re

from tests.support.local_place import Typed
from tests.support.terminals import Terminal

STEPPING = """\
import itertools, sys, time
from ddp_trainer.metrics import attach
meter = attach.meter()
for step in itertools.count(1):
    time.sleep(0.05)
    meter.end_phase("forward")
    meter.step(samples=8)
    if step % 100 == 0:
        print(f"{step} steps are done", flush=True)
    if step == int(sys.argv[1]):
        break
"""
ERASE = "\r\x1b[K"
STEP = re.compile(r"mine: step (\d+)")


def submitting(typed: Typed, name: str, *words: str) -> list[str]:
    """The words of a command that submits a job and waits for it."""
    return ["submit", typed.write("stepping.py", STEPPING), "--local", "--name", name, "-j", "1x1", *words]


def lines_left(text: str) -> list[str]:
    """The lines that stay on a terminal, whose last line was erased and rewritten meanwhile."""
    plain = re.sub(r"\x1b\[\?7[lh]", "", text).replace("\r\n", "\n")
    return [line.rpartition(ERASE)[2] for line in plain.split("\n")]


def test_a_terminal_shows_one_line_between_the_logs_and_ctrl_c_leaves_the_job_running(typed: Typed) -> None:
    shell = {name: value for name, value in typed.environ.items() if name not in {"COLUMNS", "LINES"}}
    command = typed.command(*submitting(typed, "mine", "--follow", "--", "100000"))
    with Terminal(command, shell | {"TERM": "xterm"}, columns=70, rows=20) as terminal:
        terminal.says(lambda report: "100 steps are done" in report and len(STEP.findall(report)) > 2)
        terminal.resize(12, 20)
        terminal.says(lambda report: report.endswith(f"{ERASE}mine: step \x1b[?7h"))
        terminal.type(b"\x03")
        assert terminal.ended() == 130
    left = lines_left(terminal.said)
    assert "[rank0] 100 steps are done" in left
    assert left[-2:] == ["error: Stopped watching; job mine continues. Return with 'kubectl-ddp logs mine -f'.", ""]
    assert not any(line.startswith("mine: ") for line in left), "progress is erased, also before the logs"
    steps = [int(step) for step in STEP.findall(terminal.said)]
    assert steps == sorted(set(steps)), "a line is written for a new step alone"
    assert typed("status", "mine").stdout.splitlines()[1].split() == ["Status:", "Running"]


def test_a_pipe_gets_plain_lines_and_a_summary_on_stderr(typed: Typed) -> None:
    done = typed(*submitting(typed, "piped", "--wait", "--", "40"))
    assert (done.returncode, done.stdout) == (0, "")
    created, *progress, end = done.stderr.splitlines()
    assert created.startswith("Job piped created")
    assert all(line.startswith("piped: ") for line in progress)
    assert len(set(progress)) == len(progress)
    assert "\x1b" not in done.stderr
    assert re.fullmatch(r"Job piped succeeded in \d+s: 40 steps, 0 restarts\. See it with '.* report piped'\.", end)
