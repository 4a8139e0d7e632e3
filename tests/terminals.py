"""A program on a terminal of its own, as a person has it."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def typed_into(command: Sequence[str], words: bytes, environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Start it, type ``words``, and wait for its end; its exit code, and all that stood on the terminal."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True)
    os.close(theirs)
    os.write(ours, words)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return program.wait(timeout=30), said
