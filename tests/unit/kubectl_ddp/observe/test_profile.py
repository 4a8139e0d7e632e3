"""Bringing a trace here: real programs that stand for kubectl, and what becomes of their bytes and words."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Profile
from kubectl_ddp.backends.base import ExecCommand
from kubectl_ddp.errors import DdpError, NotFound, TimedOut
from kubectl_ddp.observe.rank_locator import entry, fetch_trace
from tests.support.programs import captured


def says(script: str) -> ExecCommand:
    return ExecCommand(words=("sh", "-c", script))


def test_a_trace_that_came_as_a_whole_is_the_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(gzip.compress(b"{}"))
    file = tmp_path / "here.json.gz"
    assert fetch_trace(says(f"cat {tmp_path / 'there'}"), file, 5.0) == file.stat().st_size
    assert gzip.decompress(file.read_bytes()) == b"{}"
    assert file.stat().st_mode & 0o777 == 0o600


LATE = "echo 'profile: Late.' >&2; echo 'command terminated with exit code 124'"


@pytest.mark.parametrize(
    ("script", "kind", "sentence"),
    [
        ("head -c 30 {there}", DdpError, "cut off on its way"),
        ("echo no gzip", DdpError, "cut off on its way"),
        (f"echo 'profile: Busy.' >&2; exit {Profile.BUSY:d}", DdpError, "Busy. Try again when they are done."),
        (f"{LATE} >&2; exit {Profile.LATE:d}", TimedOut, "Late. Give it a longer --timeout"),
        ("echo 'No module named ddp_trainer' >&2; exit 1", DdpError, "made no trace: No module named ddp_trainer."),
        ("exit 137", DdpError, "made no trace: exit code 137."),
    ],
)
def test_a_failure_is_told_and_leaves_nothing(tmp_path: Path, script: str, kind: type[DdpError], sentence: str) -> None:
    (tmp_path / "there").write_bytes(gzip.compress(bytes(range(256))))
    with pytest.raises(kind, match=re.escape(sentence)):
        fetch_trace(says(script.format(there=tmp_path / "there")), tmp_path / "here", 5.0)
    assert [file.name for file in tmp_path.iterdir()] == ["there"]


def test_a_program_and_a_directory_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="/nonexistent/kubectl"):
        fetch_trace(ExecCommand(words=("/nonexistent/kubectl",)), tmp_path / "here", 5.0)
    with pytest.raises(DdpError, match="cannot be written"):
        fetch_trace(says("true"), tmp_path / "nowhere" / "here", 5.0)


def test_beside_a_rank_whose_process_nobody_knows_the_named_interpreter_runs() -> None:
    words = entry(7, {}, steps=3, seconds=0.1, python=sys.executable).words
    done = captured(words, env={"LC_ALL": "C"})
    refused = "profile: No worker with local rank 7 runs in this pod under ddp-launch.\n"
    assert (done.returncode, done.stderr) == (1, refused)
