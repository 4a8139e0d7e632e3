"""Programs on a terminal of their own, recorded with the time of each screen."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

_SCREEN: Final = re.compile(r"\x1b\[H(.*?)\x1b\[J", re.DOTALL)
"""One screen of a program that draws in place: from the upper left corner until the rest is cleared."""

_CODE: Final = re.compile(r"\x1b\[[0-9;]*m")


class Recording:
    """A program that runs on a terminal, as a context manager; at its end the program is stopped."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], *, columns: int, rows: int) -> None:
        self._terminal, child_end = pty.openpty()
        fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        terminal = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows), "LC_ALL": "C.UTF-8"}
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), child_end)
        self._program = subprocess.Popen(command, env={**environ, **terminal}, start_new_session=True, **ends)  # type: ignore[call-overload]
        os.close(child_end)
        self._pieces: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._program.terminate()
        self._program.wait()
        self._reader.join()
        os.close(self._terminal)

    def wait(self) -> int:
        """Wait for the end of the program and of its output; return the exit code."""
        self._reader.join()
        return self._program.wait()

    @property
    def text(self) -> str:
        """All output so far."""
        return "".join(text for _, text in self._pieces)

    def screens(self) -> list[tuple[float, tuple[str, ...]]]:
        """Return the complete screens, each with the Unix time of its last piece, without repetitions."""
        output, ends = "", []
        for moment, text in self._pieces:
            output += text
            ends.append((len(output), moment))
        found: list[tuple[float, tuple[str, ...]]] = []
        for screen in _SCREEN.finditer(output):
            lines = tuple(line.removesuffix("\x1b[K") for line in screen[1].split("\r\n"))
            moment = next(moment for end, moment in ends if end >= screen.end())
            if not found or found[-1][1] != lines:
                found.append((moment, lines))
        return found

    def _read(self) -> None:
        letters = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while chunk := os.read(self._terminal, 65536):
                self._pieces.append((time.time(), letters.decode(chunk)))
        except OSError:  # the program has closed its end
            pass


def record_output(command: Sequence[str], environ: Mapping[str, str], *, columns: int) -> list[str]:
    """Return the lines that a command writes on a terminal, with their colors."""
    with Recording(command, environ, columns=columns, rows=50) as recording:
        recording.wait()
    return recording.text.replace("\r\n", "\n").rstrip("\n").split("\n")


def wrap_lines(lines: Sequence[str], columns: int) -> list[str]:
    r"""Return the lines with longer ones broken at spaces, with the indent of their first line.

    >>> wrap_lines(["  a long \x1b[31mline\x1b[0m", "short"], 8)
    ['  a long', '    \x1b[31mline\x1b[0m', 'short']
    """
    found = []
    for line in lines:
        indent = len(line) - len(line.lstrip()) + 2
        row, width = "", 0
        for word in re.findall(r"\s*\S+", line):
            size = len(_CODE.sub("", word))
            if width and width + size > columns:
                found.append(row)
                word, size = " " * indent + word.lstrip(), size - len(word) + len(word.lstrip()) + indent  # noqa: PLW2901
                row, width = "", 0
            row, width = row + word, width + size
        found.append(row)
    return found
