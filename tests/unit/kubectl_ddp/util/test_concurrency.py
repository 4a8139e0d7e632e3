"""Concurrent requests."""

from __future__ import annotations

import signal
import sys

import pytest

from kubectl_ddp.errors import Unreachable
from kubectl_ddp.util.concurrency import AT_ONCE, map_in_threads, run_in_threads
from tests.support.programs import captured

INTERRUPTED = """
import os, signal, threading
from kubectl_ddp.util.concurrency import run_in_threads
run_in_threads(lambda: os.kill(os.getpid(), signal.SIGINT), threading.Event().wait)
"""


def test_answers_come_in_the_order_of_the_questions_however_many_they_are() -> None:
    assert run_in_threads() == ()
    numbers = range(3 * AT_ONCE)
    assert map_in_threads(lambda number: number * 2, numbers) == [number * 2 for number in numbers]


def test_the_first_that_fails_is_told_when_all_have_ended() -> None:
    ended = []

    def fails() -> None:
        raise Unreachable("It is away.")

    with pytest.raises(Unreachable, match="It is away"):
        run_in_threads(fails, lambda: ended.append(1), lambda: ended.append(2))
    assert sorted(ended) == [1, 2]


def test_ctrl_c_waits_for_no_question_that_nobody_answers() -> None:
    done = captured([sys.executable, "-c", INTERRUPTED], timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
