"""Progress on a terminal and in a pipe: unchanged text is not printed again."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kubectl_ddp.cli.internal.progress import PlainLines, ProgressLine, RewrittenLine
from tests.support.clocks import Clock

ERASE = "\r\x1b[K"


def training(step: int) -> ProgressLine:
    return ProgressLine("digits", "running", f"step {step} of 690")


QUEUED = ProgressLine("digits", "queued", "queued")


class Screen(io.StringIO):
    """A terminal whose window has a size, with its line, and what was written since the last look."""

    encoding = "utf-8"

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.clock = Clock()
        self.line = RewrittenLine(self, self.clock)

    def fileno(self) -> int:
        return self.window

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.window, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def written(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def screen() -> Iterator[Screen]:
    leader, follower = pty.openpty()
    screen = Screen(follower)
    screen.resize(80)
    yield screen
    os.close(leader)
    os.close(follower)


def drawn(text: str) -> str:
    return f"\x1b[?7l{ERASE}{text}\x1b[?7h"


def test_a_terminal_has_one_line_that_is_rewritten_when_it_changes(screen: Screen) -> None:
    for line in (QUEUED, QUEUED, training(1)):
        screen.line.show(line)
    assert screen.written() == drawn("digits: queued") + drawn("digits: step 1 of 690")
    for _ in range(100):
        screen.clock.now += 1.0
        screen.line.show(training(1))
    assert screen.written() == "", "nothing has changed"


def test_the_line_fits_a_narrow_window_and_follows_its_size(screen: Screen) -> None:
    screen.resize(10)
    screen.line.show(training(1))
    assert screen.written() == drawn("digits: s"), "the last column stays free"
    screen.resize(12)
    screen.line.show(training(1))
    assert screen.written() == drawn("digits: ste")


def test_text_of_a_job_sends_no_controls_to_the_terminal(screen: Screen) -> None:
    screen.line.show(ProgressLine("digits", "queued", "queued", cause="a\x1b[2Jb\nc"))
    assert screen.written() == drawn("digits: queued. a\\x1b[2Jb c")


def test_logs_get_an_empty_line_and_the_progress_returns_when_they_pause(screen: Screen) -> None:
    screen.line.show(training(1))
    screen.written()
    with screen.line.paused():
        assert screen.written() == ERASE
    screen.line.show(training(2))
    with screen.line.paused():
        assert screen.written() == "", "logs follow one another, and nothing is erased or drawn between them"
    screen.clock.now += 1.5
    screen.line.show(training(2))
    assert screen.written() == drawn("digits: step 2 of 690")


@dataclass
class Pipe:
    """Plain lines, and their clock."""

    clock: Clock = field(default_factory=Clock)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.printer = PlainLines(self.lines.append, self.clock)

    def show(self, line: ProgressLine, *, after: float = 1.0) -> None:
        self.clock.now += after
        self.printer.show(line)


def test_a_pipe_has_a_line_for_each_phase_and_cause_at_once() -> None:
    pipe = Pipe()
    caused = ProgressLine("digits", "queued", "queued", cause="No quota.")
    for line in (QUEUED, QUEUED, caused, caused, training(1), training(1)):
        pipe.show(line)
    assert pipe.lines == ["digits: queued", "digits: queued. No quota.", "digits: step 1 of 690"]


def test_steps_in_a_pipe_become_rarer() -> None:
    pipe = Pipe()
    for step in range(3600):
        pipe.show(training(step))
    assert pipe.lines[:3] == [f"digits: step {step} of 690" for step in (0, 10, 20)]
    assert len(pipe.lines) < 60


def test_a_step_that_was_held_back_is_printed_later_and_once() -> None:
    pipe = Pipe()
    for step, after in ((1, 1.0), (2, 1.0), (2, 20.0), (2, 600.0)):
        pipe.show(training(step), after=after)
    assert pipe.lines == ["digits: step 1 of 690", "digits: step 2 of 690"]
