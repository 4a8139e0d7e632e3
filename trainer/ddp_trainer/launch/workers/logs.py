"""Output of workers: to the console with a prefix, to files, or both, without mixing lines.

:class:`LogSpec` holds the routes. :class:`LogForwarder` is a thread that reads the workers' pipes and writes the lines.
The thread lets a console block without blocking the agent's connection to the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from string import Template
from typing import Final

from ddp_trainer.launch.protocol.console import LaunchError, log_line

LINE_BYTES: Final = 64 * 1024
"""Maximum bytes of a line; longer lines are split, so that output without line ends does not fill the memory."""

TAIL_LINES: Final = 256
"""Lines kept of each stderr. An abort of torch prints some hundred lines after its cause."""
TAIL_LINE_BYTES: Final = 1000
CATCH_UP_SECONDS: Final = 0.5

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
"""Line ends. A progress bar's carriage return is one, so that the bar is visible before it is complete."""


class Std(IntFlag):
    """Set of output streams, with torchrun's numbers."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


def parse_std(text: str, flag: str) -> dict[int, Std] | Std:
    """Parse ``3``, or ``0:3,1:2`` per local rank.

    >>> parse_std("0:3,1:2", "--tee")
    {0: <Std.ALL: 3>, 1: <Std.ERR: 2>}

    Raises:
        LaunchError: If the text has neither form.
    """
    if re.fullmatch(r"[0-3]", text):
        return Std(int(text))
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        return {int(rank): Std(int(std)) for rank, std in (pair.split(":") for pair in text.split(","))}
    raise LaunchError(f"{flag} {text!r} is neither 0, 1, 2 or 3 (none, stdout, stderr, both) nor RANK:NUMBER,... .")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """Routes of the workers' output."""

    redirects: dict[int, Std] | Std = Std.NONE
    tee: dict[int, Std] | Std = Std.NONE
    shown: frozenset[int] | None = None
    """Local ranks with output on the console; None for all."""
    prefix: str = "[${role_name}${local_rank}]:"
    stdout_filters: tuple[str, ...] = ()
    """Words; stdout lines that contain one are copied to ``filtered_stdout.log``."""
    stderr_filters: tuple[str, ...] = ()

    def of(self, local_rank: int, stream: Std) -> tuple[bool, bool]:
        """Return whether a stream goes to a file, and whether it goes to the console."""
        redirected, teed = (bool(_of_rank(spec, local_rank) & stream) for spec in (self.redirects, self.tee))
        on_console = teed or not redirected
        return redirected or teed, on_console and (self.shown is None or local_rank in self.shown)


def _of_rank(spec: dict[int, Std] | Std, local_rank: int) -> Std:
    return spec if isinstance(spec, Std) else spec.get(local_rank, Std.NONE)


@dataclass(slots=True)
class Prefix:
    """Prefix of each line on the console. Its rank may change while the worker lives."""

    template: str
    """Template with ``${rank}``."""
    rank: int | None
    """Current rank; None before the first group."""

    def __bytes__(self) -> bytes:
        """Return the prefix with the current rank."""
        return Template(self.template).safe_substitute(rank="?" if self.rank is None else self.rank).encode()


@dataclass(slots=True)
class _Stream:
    """One pipe and the targets of its lines."""

    source: int
    console: int | None
    prefix: Prefix
    file: int | None
    path: Path | None
    filters: tuple[bytes, ...]
    filtered: Path | None
    tail: deque[bytes] | None = None
    partial: bytearray = field(default_factory=bytearray)
    is_file_incomplete: bool = False

    def write(self, lines: Sequence[bytes]) -> None:
        prefix = bytes(self.prefix)
        if self.tail is not None:
            self.tail.extend(line[:TAIL_LINE_BYTES] for line in lines)
        if self.console is not None:
            _write(self.console, b"".join(prefix + line + b"\n" for line in lines))
        matching = [line for line in lines if any(word in line for word in self.filters)]
        if matching and self.filtered:
            with contextlib.suppress(OSError), self.filtered.open("ab") as file:
                file.write(b"".join(prefix + line + b"\n" for line in matching))

    def take(self, chunk: bytes) -> None:
        trouble = _write(self.file, chunk) if self.file is not None else None
        if trouble and not self.is_file_incomplete:
            self.is_file_incomplete = True
            log_line(incomplete_file_message(self.path, trouble))
        self.partial += chunk
        # A carriage return at the very end may be half of a line end.
        *lines, rest = _LINE_END.split(bytes(self.partial[:-1] if self.partial.endswith(b"\r") else self.partial))
        pending = b"\r" if self.partial.endswith(b"\r") else b""
        while len(rest) > LINE_BYTES:
            lines.append(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self.partial = bytearray(rest + pending)
        self.write(lines)

    def close(self) -> None:
        if rest := bytes(self.partial).rstrip(b"\r"):
            self.write([rest])
        self.partial.clear()
        os.close(self.source)
        if self.file is not None:
            os.close(self.file)


class LogForwarder:
    """Thread that copies the workers' output. Call :meth:`add` from one other thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._new: list[_Stream] = []
        self._awaited: threading.Event | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ddp-logs", daemon=True)
        self._thread.start()

    def add(
        self,
        *,
        console: int | None,
        prefix: Prefix,
        file: Path | None,
        filters: tuple[str, ...] = (),
        filtered: Path | None = None,
        tail: deque[bytes] | None = None,
    ) -> int:
        """Return the write end of a new pipe for a worker; the caller closes its copy.

        Args:
            console: Descriptor that lines are written to.
            prefix: Written before each line, not to the file.
            file: File that everything is written to.
            filters: Words of the lines that go to ``filtered``.
            filtered: File of these lines.
            tail: Receives the lines, for later reports.

        Raises:
            OSError: The file or a pipe cannot be opened, although the disk has room.
        """
        target = None
        try:
            target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644) if file else None
        except OSError as trouble:
            if trouble.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            log_line(incomplete_file_message(file, trouble))
        source, sink = os.pipe()
        words = tuple(word.encode() for word in filters)
        with self._lock:
            self._new.append(_Stream(source, console, prefix, target, file, words, filtered, tail))
        os.write(self._wake_write, b".")
        return sink

    def catch_up(self, seconds: float = CATCH_UP_SECONDS) -> None:
        """Wait, for at most ``seconds``, until everything that workers have written by now is copied."""
        with self._lock:
            awaited = self._awaited = threading.Event()
        os.write(self._wake_write, b".")
        awaited.wait(seconds)

    def close(self, timeout: float = 10.0) -> None:
        """Write the output that has arrived, and end the thread, without waiting for processes that outlived their
        worker.

        Args:
            timeout: Maximum wait for the thread, in seconds.
        """
        with self._lock:
            self._closing = True
        os.write(self._wake_write, b".")
        self._thread.join(timeout)

    def _run(self) -> None:
        is_closing = False
        while self._copy_available(timeout=0 if is_closing else None) or not is_closing:
            self._drain_if_requested()
            is_closing = self._closing
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Stream):
                key.data.close()

    def _drain_if_requested(self) -> None:
        with self._lock:
            awaited, self._awaited = self._awaited, None
        if awaited:
            while self._copy_available(timeout=0):
                pass
            awaited.set()

    def _copy_available(self, timeout: float | None) -> bool:
        """Copy the available output, and return whether there was any."""
        carried = False
        for key, _ in self._selector.select(timeout):
            if not isinstance(key.data, _Stream):
                self._register_new()
                carried = True
                continue
            chunk = os.read(key.data.source, 1 << 16)
            carried = carried or bool(chunk)
            if chunk:
                key.data.take(chunk)
            else:
                self._selector.unregister(key.data.source)
                key.data.close()
        return carried

    def _register_new(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with self._lock:
            new, self._new = self._new, []
        for stream in new:
            self._selector.register(stream.source, selectors.EVENT_READ, stream)


def incomplete_file_message(path: Path | None, trouble: OSError) -> str:
    """Return the line for a log file that cannot be written, which ``kubectl ddp why`` reads."""
    return f"disk: the log file {path} misses output: {trouble.strerror}; make room there, or give another --log-dir."


def _write(target: int, data: bytes) -> OSError | None:
    """Write all bytes in as few writes as possible. Return the error of a closed console or a full disk, which must not
    stop training.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError as error:
        return error
    return None
