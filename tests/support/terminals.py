"""A program on a pseudo-terminal."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

PATIENCE_SECONDS = 30.0
"""Longest silence of a working program."""
MOST_SECONDS = 120.0
"""Longest wait for an expected picture of a program that keeps drawing."""


def typed_into(command: Sequence[str], words: bytes, environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Start it, type ``words``, and wait for its end; its exit code, and all that stood on the terminal."""
    own, other = pty.openpty()
    program = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environ, start_new_session=True)
    os.close(other)
    os.write(own, words)
    report = b""
    try:
        while chunk := os.read(own, 4096):
            report += chunk
    except OSError:  # the other end is closed
        pass
    os.close(own)
    return program.wait(timeout=30), report


class Typing(io.StringIO):
    """Standard input of a user who types at a terminal."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """A program that has a terminal for itself, as the one that runs in the foreground, and what stands there now."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], *, columns: int, rows: int) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(self._theirs)
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), self._theirs)
        # The program's session has the terminal, so that Ctrl-C and changes of size are signals to it.
        self.program = subprocess.Popen(["setsid", "--ctty", *command], env=environ, **ends)  # type: ignore[call-overload]
        self.said = ""
        """All that stood on the terminal so far."""
        self._letters = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self._theirs)
        os.close(self._ours)

    def resize(self, columns: int, rows: int) -> None:
        """Another size, as when a person pulls at the window."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def shows(self, reached: Callable[[list[str]], object]) -> list[str]:
        """Return the lines of the last whole picture, without colours, as soon as ``reached`` holds for them.

        A terminal receives a picture in pieces: the newest output may be half of the next one.
        """
        self.says(lambda _: reached(self._build_view()))
        return self._build_view()

    def says(self, reached: Callable[[str], object]) -> None:
        """Wait until it is so of all that stood on the terminal so far."""
        end = time.monotonic() + MOST_SECONDS
        while not reached(self.said):
            if not select.select([self._ours], [], [], PATIENCE_SECONDS)[0] or time.monotonic() > end:
                raise AssertionError(f"it was not shown; there was {self.said!r}")
            self._dispatch_message()

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        while self.program.poll() is None:
            if select.select([self._ours], [], [], 0.05)[0]:
                self._dispatch_message()
        while select.select([self._ours], [], [], 0)[0]:
            self._dispatch_message()
        return self.program.returncode

    @property
    def is_as_before(self) -> bool:
        """Return whether keys and echo are restored for the shell."""
        return termios.tcgetattr(self._theirs) == self.modes

    def _dispatch_message(self) -> None:
        # A letter of several bytes may be in two pieces, too.
        self.said += self._letters.decode(os.read(self._ours, 65536))

    def _build_view(self) -> list[str]:
        pictures = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.said, re.DOTALL)
        plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", pictures[-1]) if pictures else ""
        return plain.split("\r\n")
