"""Log files of pods in the kubelet's format, and a reader that the file system wakes as they grow.

One line is ``<RFC 3339 time> <stream> <F|P> <text>``. Times in one file strictly increase, so a reader can resume from
the last time it read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kubectl_ddp.backends.local.directory import JobDirectory
from kubectl_ddp.backends.local.inotify import Watch, descriptors
from kubectl_ddp.backends.local.job_status import engine_of, snapshot
from kubectl_ddp.errors import NotFound
from kubectl_ddp.kube.objects import Object, log_timestamp
from kubectl_ddp.status.metrics_parser import is_part
from kubectl_ddp.util.concurrency import Stop

_LONGEST: Final = 16 * 1024
"""Bytes after which an unterminated line is written in parts, as container runtimes do."""


class LogWriter:
    """Appends the output of a container to its pod's log, line by line."""

    def __init__(self, file: Path, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._open = b""
        self._last = 0
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def feed(self, data: bytes) -> None:
        """Process the next bytes; complete lines are written immediately."""
        *lines, rest = (self._open + data).split(b"\n")
        entries = [self._entry(line, b"F") for line in lines]
        while len(rest) >= _LONGEST:
            entries.append(self._entry(rest[:_LONGEST], b"P"))
            rest = rest[_LONGEST:]
        self._open = rest
        self._write(b"".join(entries))

    def finish(self) -> None:
        """Write an unterminated last line after the end of the container."""
        if self._open:
            self._write(self._entry(self._open, b"F"))
            self._open = b""

    def close(self) -> None:
        """Write the last line and close the file."""
        self.finish()
        os.close(self._fd)

    def _entry(self, text: bytes, tag: bytes) -> bytes:
        self._last = max(self._clock(), self._last + 1)
        return b"%s stdout %s %s\n" % (log_timestamp(self._last).encode(), tag, text)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # disk full: training matters more than its log
            while data:
                data = data[os.write(self._fd, data) :]


class LogReader:
    """Reads a log file from the beginning or from a point in time, and again as it grows."""

    def __init__(self, file: Path, *, since: str | None = None) -> None:
        self._file = file
        self._since = since or ""
        self._offset = 0
        self._rest = b""
        self._part = ""

    def skip_to_last(self, size: int) -> None:
        """Start with the first line that begins in the last ``size`` bytes."""
        try:
            with self._file.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                if file.tell():
                    file.readline()
                self._offset = file.tell()
        except FileNotFoundError:
            return

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield time and text of every line added since the last call."""
        for entry in self._entries():
            moment, _, tag, text = [*entry.split(" ", 3), "", "", ""][:4]
            if tag == "P":
                self._part += text
                continue
            text, self._part = self._part + text, ""
            if moment >= self._since:
                yield moment, text

    def _entries(self) -> Iterator[str]:
        try:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(1 << 16):
                    self._offset += len(chunk)
                    *complete, self._rest = (self._rest + chunk).split(b"\n")
                    yield from (entry.decode(errors="replace") for entry in complete)
        except FileNotFoundError:
            return


def entries(
    directory: JobDirectory, pod: Object, *, follow: bool, tail: int | None, since: str | None, stop: Stop | None = None
) -> Iterator[tuple[str, str]]:
    """Yield time and text of a pod's lines; with ``follow``, until its container has ended or ``stop`` is requested."""
    reader = _FilteredLogReader(directory.log(pod["metadata"]["name"]), since=since)
    if not follow:
        lines = list(reader.lines())
        yield from lines[-tail:] if tail else lines[: 0 if tail == 0 else None]
        return
    engine = engine_of(directory)
    pidfd = engine.identity.open() if engine is not None else None
    with descriptors(pidfd, stop) as ends, Watch([], ends) as watch:
        for path in (directory.path, directory.pod(pod["metadata"]["name"])):
            if path.exists():
                watch.add(path)
        yield from _follow(reader, directory, pod, tail, watch, stop)


def raw_lines(directory: JobDirectory, pod: Object) -> Iterator[str]:
    """Yield the text of all lines of the pod, including hidden ones."""
    return (text for _, text in LogReader(directory.log(pod["metadata"]["name"])).lines())


class _FilteredLogReader(LogReader):
    """Reader of the lines that are shown to users."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines without the history of the pod's metrics."""
        return ((moment, text) for moment, text in super().lines() if not is_part(text))


def _follow(
    reader: LogReader, directory: JobDirectory, pod: Object, tail: int | None, watch: Watch, stop: Stop | None
) -> Iterator[tuple[str, str]]:
    lines = list(reader.lines())
    yield from lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    written = None
    while stop is None or not stop.is_requested:
        stamp = _status_mtime(directory)
        # Check for the end before the last read, so that the last line is read.
        is_gone = stamp != written and _is_gone(directory, pod)
        written = stamp
        yield from reader.lines()
        if is_gone:
            return
        watch.wait()
        if not is_alive(directory):
            written = None


def is_alive(directory: JobDirectory) -> bool:
    """Return True if an engine still runs the job."""
    engine = engine_of(directory)
    return engine is not None and not engine.is_gone


def _status_mtime(directory: JobDirectory) -> int:
    try:
        return directory.status_file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _is_gone(directory: JobDirectory, pod: Object) -> bool:
    try:
        pods = snapshot(directory).pods
    except NotFound:
        return True
    current = next((item for item in pods if item["metadata"]["uid"] == pod["metadata"]["uid"]), None)
    if current is None or current["status"]["phase"] in {"Succeeded", "Failed"}:
        return True
    before, now = (item["status"]["containerStatuses"][0]["restartCount"] for item in (pod, current))
    return bool(now != before)
