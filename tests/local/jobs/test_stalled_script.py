"""``status`` and ``why`` name the rank of a plain script that the others wait for, by what launchers report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.launch_harness import wait_until
from tests.support.local_place import Place, Typed, seen_in_log

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


def test_the_rank_that_others_wait_for_is_named_without_steps_and_until_it_moves(
    place: Place, typed: Typed, tmp_path: Path
) -> None:
    def shown(command: str) -> Any:
        return json.loads(typed(command, "digits", "-o", "json").stdout)

    script, wake = typed.write("plain.py", SCRIPT), tmp_path / "wake"
    flags = ("--nproc", "2", "--preflight", "off", "--env", f"WAKE={wake}")
    assert typed("submit", script, "--local", "--name", "digits", *flags).returncode == 0
    seen_in_log(place, "waiting: the others wait for rank 1")
    wait_until(lambda: shown("status")["stall"] is not None, "the launcher's report")
    state = shown("status")
    assert (state["stall"]["rank"], state["ranks"][1]["state"]) == (1, "waited for")
    why = shown("why")
    assert (why["cause"], why["exitCode"]) == ("hang", 14)
    assert "rank 1 on digits-worker-0, which did not enter all_reduce #5" in why["findings"][0]["message"]
    wake.touch()
    wait_until(lambda: shown("status")["stall"] is None, "the end of the stall")
    assert shown("why")["cause"] == "running"
    (tmp_path / "wake-end").touch()
