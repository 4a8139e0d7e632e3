"""Loss and values of a plain script, from its two ranks to every command that shows them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from kubectl_ddp.status.metrics_parser import is_part
from tests.support.launch_harness import PATIENCE_SECONDS
from tests.support.local_place import Place, Typed, workers

REPORTING = """\
import os, pathlib, sys, time
from ddp_trainer.metrics import attach

rank = int(os.environ["RANK"])
attach.log(loss=0.25 + rank, val_accuracy=0.75 - rank / 2, extra={f"of/rank-{rank}": 1 + rank})
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


def test_every_command_shows_the_loss_and_the_values_of_a_plain_script(
    place: Place, typed: Typed, tmp_path: Path
) -> None:
    script, may_end, page = typed.write("own.py", REPORTING), tmp_path / "may-end", tmp_path / "page.html"
    words = ("submit", script, "--local", "--name", "own", "-j", "1x2", "--", str(may_end))
    assert typed(*words).returncode == 0
    state = until_two_ranks_have_reported(typed)
    assert state["loss"] == 0.25
    assert state["values"] == {"val_accuracy": 0.75, "of/rank-0": 1.0, "of/rank-1": 2.0}
    shown = typed("status", "own").stdout
    assert "val_accuracy 0.75, of/rank-0 1, of/rank-1 2" in shown
    top = typed("top", "own", "--once").stdout
    assert "loss 0.25" in top
    assert "values: val_accuracy 0.75, of/rank-0 1, of/rank-1 2" in top
    may_end.touch()
    assert typed("wait", "own", "--timeout", "100s").returncode == 0
    assert typed("report", "own", "-o", str(page)).returncode == 0
    logged = typed("logs", "own", "--rank", "all")
    assert (logged.returncode, "ddp-history" in logged.stdout) == (0, False)
    [pod] = workers(place.job("own"))
    assert place.metrics_history(pod) is not None
    assert is_part(place.files("own").log("own-worker-0").read_text().splitlines()[-1].split(" ", 3)[3])
    text = page.read_text()
    assert "val_accuracy 0.75, of/rank-0 1, of/rank-1 2" in text
    assert ">val_accuracy</h3>" in text
    assert ">Training loss</h3>" in text


def until_two_ranks_have_reported(typed: Typed) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = typed("status", "own", "-o", "json")
        state: dict[str, Any] = json.loads(done.stdout)
        if len(state["values"]) == 3 and state["loss"] is not None:
            return state
        assert time.monotonic() < deadline, state
