"""Why threads of torch have ended a worker by SIGABRT, by recorded ends of its stderr."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

import pytest

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.launch import failures
from ddp_trainer.launch.failures import FailureBuilder
from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.launch.workers.logs import TAIL_LINES, LogForwarder, Prefix

SAMPLES = Path(__file__).parents[3] / "samples"
TIMEOUT = (SAMPLES / "nccl_watchdog_timeout.txt").read_text()
CUDA = (SAMPLES / "nccl_watchdog_cuda.txt").read_text()


def ended(exit_code: int, stderr: str) -> Failure:
    builder = FailureBuilder("worker-0", {}, lambda *_: Path("/nonexistent"), lambda _: stderr)
    return builder.ended(None, 0, exit_code)


@pytest.mark.parametrize(
    ("stderr", "reason", "begins"),
    [
        (
            TIMEOUT,
            FailureReason.COLLECTIVE_TIMEOUT,
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808",
        ),
        (CUDA, FailureReason.GPU_FAULT, "CUDA error: uncorrectable ECC error encountered"),
        (TIMEOUT + CUDA, FailureReason.GPU_FAULT, "CUDA error: uncorrectable ECC error encountered"),
        (
            "double free or corruption (out)\n",
            FailureReason.SIGABRT,
            "died of SIGABRT: double free or",
        ),
        (
            'terminate called\n  what():  boom\nFatal Python error: Aborted\n\n  File "t.py", line 1 in <module>\n',
            FailureReason.SIGABRT,
            "died of SIGABRT: what():  boom",
        ),
        ("", FailureReason.SIGABRT, "died of SIGABRT"),
    ],
    ids=["timeout", "ECC", "both", "another abort", "with Python's stacks", "silence"],
)
def test_an_abort_has_the_reason_that_stderr_gives(stderr: str, reason: FailureReason, begins: str) -> None:
    failure = ended(failures.ABORTED, stderr)
    assert failure.reason == reason
    assert failure.message.startswith(begins)
    assert failure.exit_code == 134


def test_stderr_counts_for_an_abort_alone() -> None:
    assert ended(139, TIMEOUT).reason == FailureReason.SIGSEGV


def test_a_timeout_is_a_consequence_of_what_another_rank_died_of() -> None:
    assert failures.reason_of(134, "", oom_killed=False, aborted=failures.abort_in(TIMEOUT)) in failures.CONSEQUENCES


def test_what_was_written_before_the_end_is_there_at_the_end() -> None:
    pump, tail = LogForwarder(), deque[bytes](maxlen=TAIL_LINES)
    sink = pump.add(console=None, prefix=Prefix("", 0), file=None, tail=tail)
    os.write(sink, b"".join(b"line %d\n" % number for number in range(2 * TAIL_LINES)) + b"x" * 5000 + b"\n")
    os.close(sink)
    pump.catch_up(60)
    lines = [line.decode() for line in tail]
    assert len(lines) == TAIL_LINES
    assert lines[-2:] == [f"line {2 * TAIL_LINES - 1}", "x" * 1000]
    pump.close()


def test_a_console_that_blocks_does_not_hold_up_whoever_asks() -> None:
    read, write = os.pipe()
    pump, tail = LogForwarder(), deque[bytes](maxlen=TAIL_LINES)
    sink = pump.add(console=write, prefix=Prefix("", 0), file=None, tail=tail)
    written = 0
    for _ in range(3):  # more than the console's pipe holds
        written += os.write(sink, b"y" * 60_000 + b"\n")
    began = time.monotonic()
    pump.catch_up(0.2)
    assert time.monotonic() - began < 30
    os.close(sink)
    while written:
        written -= len(os.read(read, 1 << 16))
    pump.close(60)
    os.close(write)
    os.close(read)
