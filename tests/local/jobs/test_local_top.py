"""``top`` on a terminal, with a job whose ranks step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.jobs.test_local_reach import await_ranks
from tests.support.local_place import Typed, a_place
from tests.support.terminals import Terminal

STEPPING = """\
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: exit(143))
from ddp_trainer.metrics import attach
meter = attach.meter()
slow = os.environ["RANK"] == "2"
while True:
    time.sleep(0.06 if slow else 0.02)
    meter.end_phase("forward")
    time.sleep(0.02 if slow else 0.06)
    meter.end_phase("comm_exposed")
    meter.step(samples=8)
"""
LEFT = "\x1b[?25h\x1b[?1049l"
"""The cursor and the screen of before."""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """A person with a job of two nodes of two ranks, of which rank 2 is slow."""
    with a_place(tmp_path_factory.mktemp("top") / "state") as place:
        script = place.state.parent / "stepping.py"
        script.write_text(STEPPING)
        typed = Typed(place)
        assert typed("submit", str(script), "--local", "--name", "digits", "-j", "2x2").returncode == 0
        await_ranks(typed, "digits", lambda rank: rank["step"])
        yield typed


def watching(typed: Typed, job: str = "digits", *, columns: int = 140, rows: int = 30, **environ: str) -> Terminal:
    """``top`` on a terminal of this size."""
    shell = {name: value for name, value in typed.environ.items() if name not in {"COLUMNS", "LINES", "LC_ALL"}}
    shell |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", **environ}
    return Terminal(typed.command("top", job), shell, columns=columns, rows=rows)


def row(picture: list[str], ranks: str = "2") -> list[str]:
    """The fields of the line that begins with these ranks; empty where there is none."""
    return next((line.split() for line in picture if line.startswith(f"{ranks} ")), [])


def test_the_view_is_live_marks_the_straggler_follows_the_windows_size_and_leaves_at_q(typed: Typed) -> None:
    with watching(typed) as terminal:
        marked = terminal.shows(
            lambda picture: (
                row(picture)[1:3] == ["digits-worker-1", "up"]
                and any(line.startswith("stragglers: rank 2 ") for line in picture)
            )
        )
        assert terminal.said.startswith("\x1b[?1049h")
        step = row(marked)[3]
        later = terminal.shows(lambda picture: row(picture)[3:4] not in ([], [step]))
        assert any("█" in line and line.startswith("throughput") for line in later)

        # Too low for four ranks: it shows two pods.
        terminal.resize(60, 9)
        small = terminal.shows(lambda picture: row(picture, "2-3"))
        assert max(map(len, small)) <= 60
        assert len(small) <= 9

        terminal.type(b"q")
        assert terminal.ended() == 0
        assert terminal.said.endswith(LEFT)
        assert terminal.is_as_before


def test_ctrl_c_gives_the_terminal_back_and_says_that_the_job_goes_on(typed: Typed) -> None:
    with watching(typed, NO_COLOR="1", LC_ALL="C") as terminal:
        terminal.shows(lambda picture: any("SEC/STEP" in line for line in picture))
        assert "\x1b[3" not in terminal.said
        assert terminal.said.isascii()
        terminal.type(b"\x03")
        assert terminal.ended() == 130
        before, _, after = terminal.said.partition(LEFT)
        assert before
        assert after == "error: Stopped watching; job digits continues.\r\n"
        assert terminal.is_as_before


def test_a_job_that_is_deleted_ends_the_view_with_a_sentence(typed: Typed) -> None:
    assert typed("submit", "--local", "--name", "gone", "-j", "1x1", "--command", "sleep", "--", "60").returncode == 0
    with watching(typed, "gone") as terminal:
        terminal.shows(lambda picture: picture[0].startswith("gone  "))
        assert typed("delete", "gone", "--yes").returncode == 0
        assert terminal.ended() == 3
        assert terminal.said.partition(LEFT)[2].startswith("error: Job 'gone' does not exist")
        assert terminal.is_as_before


FALLING = """\
import os, pathlib, sys, time
from ddp_trainer.metrics import attach
meter, poison = attach.meter(), pathlib.Path(sys.argv[1])
for step in range(1, 100_000):
    time.sleep(0.05)
    attach.log(loss=1000 / step)
    meter.step(samples=8)
    if poison.exists():
        poison.unlink()
        os._exit(9)
"""


def test_the_loss_curve_continues_after_a_killed_worker(typed: Typed, tmp_path: Path) -> None:
    script, poison = tmp_path / "falling.py", tmp_path / "poison"
    script.write_text(FALLING)
    submit = ("submit", str(script), "--local", "--name", "falling", "-j", "1x1", "--", str(poison))
    assert typed(*submit).returncode == 0

    def loss_curve(picture: list[str]) -> str:
        return next((line.removeprefix("loss: ") for line in picture if line.startswith("loss: ")), "")

    with watching(typed, "falling") as terminal:
        before = loss_curve(terminal.shows(lambda picture: len(loss_curve(picture)) >= 3))
        assert before[0] == "█"
        poison.touch()
        restarted = loss_curve(terminal.shows(lambda picture: any("restarts 1" in line for line in picture)))
        terminal.shows(lambda picture: len(loss_curve(picture)) > max(len(before), len(restarted)) + 1)
        terminal.type(b"q")
        assert terminal.ended() == 0
    assert typed("delete", "falling", "--yes").returncode == 0
