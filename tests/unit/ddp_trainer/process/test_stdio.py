"""Commands whose output has no reader, no room, or no stream."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "ddp-launch", "preflight", "--standalone", "-o", "json"
COMPLETE = "ddp-launch", "--print-completion", "bash"
HELP = "ddp_trainer", "--help"


def run(command: tuple[str, ...], stdout: int) -> tuple[int, str]:
    main = "launch" if command[0] == "ddp-launch" else "main"
    start = f"import sys; from ddp_trainer.__main__ import {main}; sys.exit({main}())"
    words = [sys.executable, "-c", start, *command[1:]]
    done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", [SHOW, COMPLETE, HELP], ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_silently(command: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run(command, writing) == (128 + 13, "")
    finally:
        os.close(writing)


@pytest.mark.parametrize("command", [SHOW, COMPLETE, HELP], ids=" ".join)
def test_a_full_disk_is_a_sentence(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        code, errors = run(command, full.fileno())
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.endswith("Cannot write output: No space left on device.\n")


def test_closed_streams_lead_nowhere_and_keep_their_numbers() -> None:
    script = (
        "import os; from ddp_trainer.process.stdio import open_closed; open_closed(); "
        "print('nothing', flush=True); "
        "os._exit(0 if [os.path.samestat(os.fstat(n), os.stat(os.devnull)) for n in (0, 1, 2)] == [True] * 3 else 9)"
    )
    done = subprocess.run(["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", script], check=False)
    assert done.returncode == 0


def test_help_is_no_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "ddp_trainer", "--help"], check=False)
    assert done.returncode == 0
    assert "checkpoint" in capfd.readouterr().out
    assert subprocess.run([sys.executable, "-m", "ddp_trainer"], check=False).returncode == 2
    assert capfd.readouterr().err.startswith("ddp_trainer: No command was given: python -m ddp_trainer {launch,")
