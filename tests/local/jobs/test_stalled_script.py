"""``status`` and ``why`` name the rank of a plain script that the others wait for, by what launchers report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kubectl_ddp.cli.group import root
from tests.support.launch_harness import wait_until
from tests.support.local_place import Place, a_place, seen_in_log

SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
wake = os.environ["WAKE"]
for step in range(100):
    dist.all_reduce(torch.ones(1))
    if step == 3 and dist.get_rank() == 1:
        while not os.path.exists(wake):
            time.sleep(0.05)
while not os.path.exists(wake + "-end"):
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path / "state") as found:
        yield found


def told(place: Place, *words: str) -> Any:
    done = CliRunner().invoke(root(), [words[0], "--local", *words[1:]], env={"XDG_STATE_HOME": str(place.state)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return json.loads(done.stdout) if "json" in words else done


def test_the_rank_that_others_wait_for_is_named_without_steps_and_until_it_moves(place: Place, tmp_path: Path) -> None:
    script, wake = tmp_path / "plain.py", tmp_path / "wake"
    script.write_text(SCRIPT)
    flags = ("--nproc", "2", "--preflight", "off", "--env", f"WAKE={wake}")
    assert told(place, "submit", str(script), "--name", "digits", *flags).exit_code == 0

    def stall() -> Any:
        return told(place, "status", "digits", "-o", "json")["stall"]

    seen_in_log(place, "waiting: the others wait for rank 1")
    wait_until(lambda: stall() is not None, "the launcher's report")
    state = told(place, "status", "digits", "-o", "json")
    assert (state["stall"]["rank"], state["ranks"][1]["state"]) == (1, "waited for")
    why = told(place, "why", "digits", "-o", "json")
    assert (why["cause"], why["exitCode"]) == ("hang", 14)
    assert "rank 1 on digits-worker-0, which did not enter all_reduce #5" in why["findings"][0]["message"]
    wake.touch()
    wait_until(lambda: stall() is None, "the end of the stall")
    assert told(place, "why", "digits", "-o", "json")["cause"] == "running"
    (tmp_path / "wake-end").touch()
