"""Being told to stop at any moment, also while the ear for it is being put on."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from ddp_trainer.common.constants import Exit
from ddp_trainer.train.distributed.stop_signals import StopRequest

TOLD_AT_EVERY_LINE = """
import os, signal, sys, threading
from ddp_trainer.train.distributed.stop_signals import StopRequest

def told_at(line):
    def trace(frame, event, _):
        nonlocal line
        if frame.f_code is not StopRequest.handle_signals.__wrapped__.__code__:
            return None
        if event == "line":
            line -= 1
            if not line:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace
    sys.settrace(trace)
    with StopRequest(grace_seconds=60, leave=lambda code, _: os._exit(code)).handle_signals():
        sys.settrace(None)
        if line > 0:
            os._exit(0)  # it has fewer lines
        threading.Event().wait(20)
    os._exit(1)  # the signal was lost

codes = []
while 0 not in codes:
    child = os.fork()
    if not child:
        told_at(len(codes) + 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*codes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_no_signal_is_lost_while_a_process_begins_to_listen() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD_AT_EVERY_LINE], capture_output=True, text=True, check=True)
    *codes, last = map(int, done.stdout.split())
    assert last == 0
    assert len(codes) > 5
    assert set(codes) <= {-15, Exit.TERMINATED}
    assert Exit.TERMINATED in codes


def test_a_request_before_training_is_obeyed_at_once_and_later_ones_wait() -> None:
    left: list[int] = []
    request = StopRequest(grace_seconds=60, leave=lambda code, _: left.append(code))
    request.begin_training()
    request.on_signal(15)
    assert request.exit_code == 143
    assert left == []
    request.on_signal(2)
    assert left == [130]
    request.finished()
    early = StopRequest(grace_seconds=60, leave=lambda code, _: left.append(code))
    early.on_signal(15)
    assert left == [130, 143]


def test_some_of_the_grace_period_is_left_to_the_launcher() -> None:
    assert math.isclose(StopRequest(grace_seconds=30, leave=lambda *_: None).patience_seconds, 29)
    assert math.isclose(StopRequest(grace_seconds=1, leave=lambda *_: None).patience_seconds, 0.5)
