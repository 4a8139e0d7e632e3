"""A loop that is about to end has nothing to say about signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from ddp_trainer import event_loop

PROGRAM = """
import asyncio, os, signal, sys
from ddp_trainer import event_loop

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, print)
    close = loop._close_self_pipe

    def close_and_signal():
        close()
        os.kill(os.getpid(), signal.SIGCHLD)

    loop._close_self_pipe = close_and_signal
    return 3

sys.exit({run}(main()))
"""


@pytest.mark.parametrize(("run", "is_silent"), [("event_loop.run", True), ("asyncio.run", False)])
def test_a_signal_that_comes_while_the_loop_closes_is_not_spoken_of(run: str, is_silent: bool) -> None:
    program = PROGRAM.replace("{run}", run)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert (done.stderr == "") is is_silent, done.stderr


def test_what_is_run_gets_its_signals_and_its_errors_out() -> None:
    async def main() -> Any:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, heard.set)
        os.kill(os.getpid(), signal.SIGUSR2)
        await heard.wait()
        raise LookupError("done")

    with pytest.raises(LookupError, match="done"):
        event_loop.run(main())
