"""Jobs on this machine under stock torchrun (``--launcher torchrun``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kubectl_ddp.render.pod import TORCHRUN
from tests.support.local_place import Typed
from tests.support.programs import captured

SHOW = """
import os
print("rank of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_ADDR"], flush=True)
"""
ENDS = """
import sys
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
assert sys.argv[1:] == [sys.argv[1]]
if sys.argv[1] == "stopped":
    raise SignalException("got a signal", __import__("signal").SIGTERM)
raise RendezvousConnectionError("worker 0 is gone")
"""


def test_two_nodes_form_a_group_under_stock_torchrun(typed: Typed) -> None:
    typed.write("show.py", SHOW)
    job = ("--name", "stock", "--local", "--launcher", "torchrun", "--nnodes", "2")
    ended = typed("submit", "show.py", *job, "--wait")
    assert ended.returncode == 0, ended.stderr
    lines = typed("logs", "stock", "--local", "--rank", "all").stdout.splitlines()
    printed = sorted(line for line in lines if "rank of" in line)
    address = printed[0].rpartition(" ")[2]
    assert printed == [f"[rank{rank}] rank of 2 at {address}" for rank in range(2)]
    assert address.startswith("127.")
    status = typed("status", "stock", "--local").stdout.split()
    assert status[status.index("Status:") + 1] == "Succeeded"
    assert status[status.index("Restarts:") + 1] == "-"
    assert "Startup:" not in status


@pytest.mark.parametrize(("end", "code"), [("stopped", 143), ("lost", 170)])
def test_a_stop_and_a_lost_rendezvous_have_exit_codes_with_which_the_pod_is_replaced(
    tmp_path: Path, end: str, code: int
) -> None:
    (tmp_path / "launcher.py").write_text(ENDS)
    words = [sys.executable, "-c", TORCHRUN, "launcher", end]
    ended = captured(words, cwd=tmp_path)
    assert ended.returncode == code
    assert ("worker 0 is gone" in ended.stderr) == (end == "lost")
