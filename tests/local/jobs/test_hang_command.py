"""``kubectl ddp hang`` on a job of this machine: before the launcher's own limit, and after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bench
from kubectl_ddp.cli.group import root
from tests.support.local_place import Place, a_place, seen_in_log

SCRIPTS = Path(bench.__file__).parent / "scripts"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path / "state") as found:
        yield found


def typed(place: Place, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(root(), [words[0], "--local", *words[1:]], env={"XDG_STATE_HOME": str(place.state)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout


def hang(place: Place, *words: str) -> Any:
    code, out = typed(place, "hang", "digits", "-o", "json", *words)
    told = json.loads(out)
    assert code == told["exitCode"] == (14 if told["hangs"] else 0), told
    return told


def launcher_of(folder: Path) -> int:
    """The process that started the first worker with this folder in its environment."""
    workers = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            block = (process / "environ").read_bytes() if process.name.isdigit() else b""
            if f"TROUBLE={folder}\0".encode() in block and b"LOCAL_RANK=0\0" in block:
                workers.append(int(process.name))
    return int(Path(f"/proc/{min(workers)}/stat").read_text().rpartition(")")[2].split()[1])


def order(folder: Path, rank: int, kind: str) -> None:
    unread = folder / "unread"
    unread.write_text(kind)
    unread.replace(folder / f"rank-{rank}")


def test_a_hanging_rank_is_named_before_the_launchers_limit_and_after(place: Place, tmp_path: Path) -> None:
    told = {"TROUBLE": tmp_path, "PYTHONPATH": SCRIPTS, "DDP_ON_HANG": "act", "DDP_HANG_FLOOR": "12", "DDP_ZYGOTE": "1"}
    flags = [word for name, value in told.items() for word in ("--env", f"{name}={value}")]
    script = str(SCRIPTS / "hanging_ddp.py")
    size = ["--nproc", "2", "--max-restarts", "3", "--preflight", "off"]
    code, _ = typed(place, "submit", script, "--name", "digits", *size, *flags)
    assert code == 0
    seen_in_log(place, "ready: ")
    moving = hang(place)
    assert (moving["answer"], len(moving["ranks"])) == ("moves", 2)
    assert [rank["pid"] for rank in moving["ranks"]] == [None, None]

    order(tmp_path, 1, "wait")
    seen_in_log(place, "trouble: rank=1")
    named = hang(place)
    (culprit,) = named["culprits"]
    assert (named["answer"], culprit["rank"], culprit["state"]) == ("hangs", 1, "deaf")
    assert "holds the GIL: no thread of Python gets a turn since it began barrier #" in culprit["sentence"]
    assert culprit["stack"]
    assert (named["stacksMissing"], culprit["pid"] is None) == ("", False)
    waiting = named["ranks"][0]
    # It has entered what the other waits for no more; only torch's own threads know.
    assert (waiting["waitsIn"], waiting["sequence"]) == ("all_reduce[[650]]", culprit["sequence"] + 1)

    seen_in_log(place, "; it is killed")
    (finding,) = hang(place, "--timeout", "0")["launcherNamed"]
    assert (finding["generation"], finding["ranks"], finding["killed"]) == (1, [1], [1])
    assert finding["sentences"][0].startswith("rank 1 on digits-worker-0 holds the GIL")


def test_a_launcher_that_is_stopped_does_not_hold_up_the_answer(place: Place, tmp_path: Path) -> None:
    told = {"TROUBLE": tmp_path, "PYTHONPATH": SCRIPTS}
    flags = [word for name, value in told.items() for word in ("--env", f"{name}={value}")]
    code, _ = typed(place, "submit", str(SCRIPTS / "hanging_ddp.py"), "--name", "digits", "--nproc", "2", *flags)
    assert code == 0
    seen_in_log(place, "ready: ")
    assert len(hang(place)["ranks"]) == 2
    launcher = launcher_of(tmp_path)
    os.kill(launcher, signal.SIGSTOP)
    try:
        stopped = hang(place, "--timeout", "0")
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert (stopped["answer"], list(stopped["silentPods"])) == ("unseen", ["digits-worker-0"])
