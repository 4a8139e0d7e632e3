"""What becomes of an agent whose own code fails: ``ddp-launch`` as a process, with a function of the agent replaced."""

from __future__ import annotations

import os
import subprocess
import sys

LAUNCH = """
import errno, sys
from ddp_trainer.launch import cli
from ddp_trainer.launch.agent import agent

def fail(*_):
    raise OSError(errno.EMFILE, "Too many open files")

{body}
sys.exit(cli.main(["--standalone", "--max-restarts=3", "--no-python", *sys.argv[1:]]))
"""


def launch(body: str, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LAUNCH.replace("{body}", body.strip()), program]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60, check=False)


def test_an_error_while_a_worker_is_reaped_ends_the_launcher() -> None:
    done = launch(
        """
reserve = agent.reserve_port
def reserve_once(_port):
    agent.reserve_port = fail
    return reserve()
agent.reserve_port = reserve_once
""",
        program="false",
    )
    assert done.returncode == 1
    assert "in reap" in done.stderr
    assert done.stderr.endswith("OSError: [Errno 24] Too many open files\n")


def test_an_error_after_the_end_is_only_printed() -> None:
    done = launch(
        """
report = agent.Agent._report_outcome
def report_and_fail(self, finish):
    self._loop.call_soon(fail)
    report(self, finish)
agent.Agent._report_outcome = report_and_fail
""",
        program="true",
    )
    assert done.returncode == 0
    assert "OSError: [Errno 24] Too many open files" in done.stderr
