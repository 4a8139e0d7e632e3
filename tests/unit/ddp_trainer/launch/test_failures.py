"""Reasons of failures by exit code, message, stderr and kernel counters, and the failure that caused the others."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path

import pytest

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.launch import failures
from ddp_trainer.launch.failures import FailureBuilder
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.launch.workers.logs import TAIL_LINES, LogForwarder, Prefix
from tests.support.launch_simulation import a_failure


class TestEvidence:
    @pytest.mark.parametrize(
        ("code", "message", "oom_killed", "reason"),
        [
            (137, "", False, FailureReason.SIGKILL),
            (137, "", True, FailureReason.HOST_OOM),
            (139, "", False, FailureReason.SIGSEGV),
            (143, "", False, FailureReason.SIGTERM),
            (1, "MemoryError: ", False, FailureReason.HOST_OOM),
            (1, "ModuleNotFoundError: No module named 'x'", False, FailureReason.IMPORT_ERROR),
            (1, "RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer", False, "collective_error"),
            (1, "DistStoreError: Timed out after 61 seconds", False, FailureReason.COLLECTIVE_TIMEOUT),
            (1, "RuntimeError: Gloo connect Timeout", False, FailureReason.COLLECTIVE_TIMEOUT),
            (1, "ValueError: no", False, FailureReason.PYTHON_EXCEPTION),
            (5, "", False, FailureReason.OTHER),
        ],
    )
    def test_codes_and_messages_have_reasons(self, code: int, message: str, oom_killed: bool, reason: str) -> None:
        assert failures.reason_of(code, message, oom_killed=oom_killed) == reason

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"message": 3}', "nonsense", '{"message": {}}'])
    def test_an_error_file_that_cannot_be_read_is_none(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "error.json"
        path.write_text(text)
        assert failures.read_error_file(path) is None

    def test_an_error_file_of_torch_has_the_time_it_was_written(self, tmp_path: Path) -> None:
        path = tmp_path / "error.json"
        note = {"message": {"message": "E: x", "extraInfo": {"py_callstack": "trace", "timestamp": "12"}}}
        path.write_text(json.dumps(note))
        os.utime(path, (12.5, 12.5))
        assert failures.read_error_file(path) == failures.ErrorFile("E: x", "trace", 12.5)

    def test_the_kernels_count_of_memory_kills_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
        assert failures.oom_kill_count(tmp_path) == 2
        assert failures.oom_kill_count(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("python_exception", "sigterm"),
        ("sigterm", "early_exit"),
        ("sigterm", "collective_error"),
        ("sigterm", "collective_timeout"),
        ("early_exit", "collective_error"),
    ],
)
def test_a_cause_comes_before_its_consequence_whatever_the_clocks_show(cause: str, consequence: str) -> None:
    later, earlier = a_failure(4, reason=cause, at=2), a_failure(4, reason=consequence, at=1)
    assert failures.root_cause(later, earlier) == failures.root_cause(earlier, later) == later


def test_the_crash_of_a_launcher_is_not_called_a_failure_of_its_rank() -> None:
    message = "The launcher died of SIGKILL, and its workers with it"
    failure = a_failure(1, exit_code=137, reason=FailureReason.LAUNCHER_CRASH, message=message)
    assert failures.final_message(Finish(93, failure=failure)) == f"{message}, on worker-0."


SPAWN = """torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/x/spawn.py", line 90, in _wrap
    fn(i, *args)
ValueError: two lines
of message
"""


@pytest.mark.parametrize(
    ("message", "innermost"),
    [
        (f"RemoteError: in a pool\n{SPAWN.replace('two', '2')}\n{SPAWN}", "ValueError: two lines\nof message"),
        ("KeyError: 'w'", "KeyError: 'w'"),
        ("RuntimeError: see Traceback (most recent call last):\n  cut off", None),
    ],
)
def test_the_innermost_error_is_the_message(message: str, innermost: str | None) -> None:
    assert failures.innermost_error(message) == (message if innermost is None else innermost)


SAMPLES = Path(__file__).parents[3] / "samples"
TIMEOUT = (SAMPLES / "nccl_watchdog_timeout.txt").read_text()
CUDA = (SAMPLES / "nccl_watchdog_cuda.txt").read_text()
TERMINATE = 'terminate called\n  what():  boom\nFatal Python error: Aborted\n\n  File "t.py", line 1 in <module>\n'


def ended(exit_code: int, stderr: str) -> Failure:
    return FailureBuilder("worker-0", {}, lambda *_: Path("/none"), lambda _: stderr).ended(None, 0, exit_code)


@pytest.mark.parametrize(
    ("stderr", "reason", "begins"),
    [
        (TIMEOUT, FailureReason.COLLECTIVE_TIMEOUT, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum"),
        (CUDA, FailureReason.GPU_FAULT, "CUDA error: uncorrectable ECC error encountered"),
        (TIMEOUT + CUDA, FailureReason.GPU_FAULT, "CUDA error: uncorrectable ECC error encountered"),
        ("double free or corruption (out)\n", FailureReason.SIGABRT, "died of SIGABRT: double free or"),
        (TERMINATE, FailureReason.SIGABRT, "died of SIGABRT: what():  boom"),
        ("", FailureReason.SIGABRT, "died of SIGABRT"),
    ],
    ids=["timeout", "ECC", "both", "another abort", "with Python's stacks", "silence"],
)
def test_an_abort_has_the_reason_that_stderr_gives(stderr: str, reason: FailureReason, begins: str) -> None:
    failure = ended(failures.ABORTED, stderr)
    assert failure.reason == reason
    assert failure.message.startswith(begins)
    assert failure.exit_code == 134


def test_stderr_counts_for_an_abort_only_and_a_timeout_there_is_a_consequence() -> None:
    assert ended(139, TIMEOUT).reason == FailureReason.SIGSEGV
    assert failures.reason_of(134, "", oom_killed=False, aborted=failures.abort_in(TIMEOUT)) in failures.CONSEQUENCES


def test_the_tail_holds_the_newest_lines_at_the_end() -> None:
    pump, tail = LogForwarder(), deque[bytes](maxlen=TAIL_LINES)
    sink = pump.add(console=None, prefix=Prefix("", 0), file=None, tail=tail)
    os.write(sink, b"".join(b"line %d\n" % number for number in range(2 * TAIL_LINES)) + b"x" * 5000 + b"\n")
    os.close(sink)
    pump.catch_up(60)
    lines = [line.decode() for line in tail]
    assert len(lines) == TAIL_LINES
    assert lines[-2:] == [f"line {2 * TAIL_LINES - 1}", "x" * 1000]
    pump.close()


def test_a_blocked_console_does_not_delay_the_caller() -> None:
    read, write = os.pipe()
    pump, tail = LogForwarder(), deque[bytes](maxlen=TAIL_LINES)
    sink = pump.add(console=write, prefix=Prefix("", 0), file=None, tail=tail)
    written = sum(os.write(sink, b"y" * 60_000 + b"\n") for _ in range(3))  # more than the console's pipe holds
    began = time.monotonic()
    pump.catch_up(0.2)
    assert time.monotonic() - began < 30
    os.close(sink)
    while written:
        written -= len(os.read(read, 1 << 16))
    pump.close(60)
    os.close(write)
    os.close(read)
