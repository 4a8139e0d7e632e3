"""``kubectl ddp hang`` on a job of this machine: before the launcher's own limit, and after it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.support.launch_harness import HANGING, order_fault
from tests.support.local_place import Place, Typed, seen_in_log

LAUNCHER = "cut -d ' ' -f 4 /proc/$RANK_PID/stat"
"""Prints the parent of the rank."""


def hang(typed: Typed, *words: str) -> Any:
    done = typed("hang", "digits", "-o", "json", *words)
    document = json.loads(done.stdout)
    assert done.returncode == document["exitCode"] == (14 if document["hangs"] else 0), document
    return document


def test_a_hanging_rank_is_named_before_the_launchers_limit_and_after(
    place: Place, typed: Typed, tmp_path: Path
) -> None:
    variables = {"TROUBLE": tmp_path, "PYTHONPATH": HANGING.parent, "DDP_ON_HANG": "act", "DDP_HANG_FLOOR": "12"}
    flags = [
        word for name, value in {**variables, "DDP_FORK_SERVER": "1"}.items() for word in ("--env", f"{name}={value}")
    ]
    size = ["--nproc", "2", "--max-restarts", "3", "--preflight", "off"]
    assert typed("submit", "--local", str(HANGING), "--name", "digits", *size, *flags).returncode == 0
    seen_in_log(place, "ready: ")
    moving = hang(typed)
    assert (moving["answer"], len(moving["ranks"])) == ("moves", 2)
    assert [rank["pid"] for rank in moving["ranks"]] == [None, None]

    order_fault(tmp_path, 1, "wait")
    seen_in_log(place, "trouble: rank=1")
    named = hang(typed)
    (culprit,) = named["culprits"]
    assert (named["answer"], culprit["rank"], culprit["state"]) == ("hangs", 1, "deaf")
    assert "holds the GIL: no thread of Python gets a turn since it began barrier #" in culprit["sentence"]
    assert culprit["stack"]
    assert (named["stacksMissing"], culprit["pid"] is None) == ("", False)
    waiting = named["ranks"][0]
    # It has left the collective in which the other waits; only torch's own threads have that number.
    assert (waiting["waitsIn"], waiting["sequence"]) == ("all_reduce[[650]]", culprit["sequence"] + 1)

    seen_in_log(place, "; it is killed")
    (finding,) = hang(typed, "--timeout", "0")["launcherNamed"]
    assert (finding["generation"], finding["ranks"], finding["killed"]) == (1, [1], [1])
    assert finding["sentences"][0].startswith("rank 1 on digits-worker-0 holds the GIL")


def test_a_launcher_that_is_stopped_does_not_hold_up_the_answer(place: Place, typed: Typed, tmp_path: Path) -> None:
    flags = [word for value in (f"TROUBLE={tmp_path}", f"PYTHONPATH={HANGING.parent}") for word in ("--env", value)]
    submit = ["submit", "--local", str(HANGING), "--name", "digits", "--nproc", "2", *flags]
    assert typed(*submit).returncode == 0
    seen_in_log(place, "ready: ")
    launcher = int(typed("exec", "digits", "--rank", "0", "--", "sh", "-c", LAUNCHER).stdout)
    os.kill(launcher, signal.SIGSTOP)
    stopped = hang(typed, "--timeout", "0")
    os.kill(launcher, signal.SIGCONT)
    assert (stopped["answer"], list(stopped["silentPods"])) == ("unseen", ["digits-worker-0"])
