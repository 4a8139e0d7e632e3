"""Reader of a pod's log as it grows, woken by the file system."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.backends.local.directory import JobDirectory
from kubectl_ddp.backends.local.inotify import Watch, descriptors
from kubectl_ddp.backends.local.liveness import engine_of, snapshot
from kubectl_ddp.backends.local.log_file import LogReader
from kubectl_ddp.errors import NotFound
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.status.history_log import is_part
from kubectl_ddp.util.concurrency import Stop


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
