"""Log lines of all ranks of a job, from all its pods and through all their restarts; equal lines are folded."""

from __future__ import annotations

import contextlib
import heapq
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError, NotFound, Unreachable, UsageError
from kubectl_ddp.kube.objects import Object, Snapshot, epoch, log_timestamp, main_status
from kubectl_ddp.status.job_state import TERMINAL, JobState, job_state
from kubectl_ddp.status.termination_message import workers
from kubectl_ddp.util.concurrency import THREAD_END_SECONDS, Stop, feed
from kubectl_ddp.util.text_table import PREFIX, format_ranges

_ERROR: Final = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|Segmentation fault)\b"
    r"|Traceback \(most recent call last\)"
    r"|^(?:\w+\.)*\w*(?:Error|Exception)\b"
)
_CONTINUATION: Final = re.compile(r"^(?:\s|During handling|The above exception|$)")

_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one pod."""

    time: str
    """Timestamp as RFC 3339 in UTC, with nanoseconds."""
    pod: str
    rank: int | None
    """Rank that wrote the line; None for the launcher."""
    text: str
    """Text as written, with its prefix."""

    @property
    def message(self) -> str:
        """Text without the prefix."""
        return PREFIX.sub("", self.text)

    def __str__(self) -> str:
        """Return the line as printed."""
        return self.text


@dataclass(slots=True)
class RankFilter:
    """Filter of log lines by rank. It tracks, per rank, if a stack trace is in progress."""

    ranks: frozenset[int] | None = None
    """Ranks to show (default: all)."""
    errors_of_all: bool = False
    """True to also show errors of other ranks, with their stack traces."""
    launchers: bool = True
    """True to show lines of the launchers."""
    _in_trace: set[tuple[str, int | None]] = field(default_factory=set)

    def matches(self, line: Line) -> bool:
        """Return whether to show a line. The lines of each rank must be passed in order."""
        if self.ranks is None or line.rank in self.ranks:
            return True
        return (self.errors_of_all and self._is_error(line)) or (line.rank is None and self.launchers)

    def _is_error(self, line: Line) -> bool:
        source = (line.pod, line.rank)
        text = line.message
        if _ERROR.search(text):
            self._in_trace.add(source)
            return True
        if source in self._in_trace and _CONTINUATION.match(text):
            return True
        self._in_trace.discard(source)
        return False


def since_time(seconds: float) -> str:
    """Return the time ``seconds`` ago, in the form of the times of lines."""
    return log_timestamp(time.time_ns() - int(seconds * 1e9))


def rank_filter(text: str | None, state: JobState | None) -> RankFilter:
    """Parse ``--rank``: ``0``, ``0-7``, ``0,3``, ``failed``, ``all``. None selects rank 0 and the errors of all ranks.

    Raises:
        UsageError: If the text has another format.
        NotFound: If the text is ``failed`` and no rank has failed, or if the job cannot have any of these ranks.
    """
    if text is None:
        return RankFilter(frozenset({0}), errors_of_all=True)
    if text == "all":
        return RankFilter()
    if text == "failed":
        if state is None or not state.failed_ranks:
            name = state.name if state is not None else ""
            raise NotFound(f"No rank of job '{name}' is known to have failed.", hint="'--rank all' shows every line.")
        return RankFilter(frozenset(state.failed_ranks), launchers=False)
    ranks: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if span is None or int(span[1]) > int(span[2] or span[1]):
            raise UsageError(f"'{text}' names no ranks.", hint="Use a rank (0), a range (0-7), 'failed' or 'all'.")
        ranks.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    if state is not None and min(ranks) >= state.max_ranks:
        most = f"ranks 0 to {state.max_ranks - 1}" if state.max_ranks > 1 else "rank 0 only"
        raise NotFound(f"Job '{state.name}' has no rank {text}.", hint=f"It can have {most}.")
    return RankFilter(frozenset(ranks), launchers=False)


def read(
    backend: Backend, name: str, ranks: RankFilter, *, tail: int | None = None, since: str | None = None
) -> Iterator[Line]:
    """Return the existing lines, by time; with ``tail``, the last matching ones. Raises NotFound.

    A suspended job of this machine has those of its ended pods.

    ``since`` is a time in the form of :attr:`Line.time`: older lines are left out.
    """
    pods = workers(backend.job(name).pods) or backend.deleted_pods(name)
    lines = filter(ranks.matches, _merged(backend, pods, since))
    return lines if tail is None else iter(deque(lines, maxlen=tail))


def follow_logs(
    backend: Backend,
    name: str,
    ranks: RankFilter,
    *,
    tail: int | None = None,
    since: str | None = None,
    timeout: float | None = None,
) -> Generator[Line]:
    """Yield the existing lines, then new lines until the job ends or is deleted. Raises NotFound.

    New lines also end after ``timeout`` seconds. Closing the generator ends its threads.
    """
    limit = None if timeout is None else time.monotonic() + timeout
    seen: dict[str, str] = {}

    def record_time(line: Line) -> bool:
        seen[line.pod] = line.time
        return ranks.matches(line)

    earlier_lines = filter(record_time, _merged(backend, workers(backend.job(name).pods), since))
    yield from earlier_lines if tail is None else deque(earlier_lines, maxlen=tail)
    with contextlib.closing(_Streams(backend, name, seen, since).lines(limit)) as lines:
        yield from filter(ranks.matches, lines)


def _merged(backend: Backend, pods: Iterable[Object], since: str | None) -> Iterator[Line]:
    """Yield lines by time. Pods deleted meanwhile are skipped; if all were deleted, NotFound is raised."""
    missing: list[NotFound] = []

    def read_lines(pod: Object) -> Iterator[Line]:
        try:
            yield from _lines(backend, pod, since=since, live=False)
        except NotFound as error:
            missing.append(error)

    logs = [read_lines(pod) for pod in pods]
    yield from heapq.merge(*logs, key=lambda line: line.time)
    if missing and len(missing) == len(logs):
        raise missing[0]


def _lines(backend: Backend, pod: Object, *, since: str | None, live: bool, stop: Stop | None = None) -> Iterator[Line]:
    """Yield the lines of one pod; only those after ``since``, if given."""
    name = str(pod["metadata"]["name"])
    for entry in backend.logs(pod, follow=live, timestamps=True, since=since, stop=stop):
        moment, _, text = entry.partition(" ")
        if since is None or moment > since:
            prefix = PREFIX.match(text)
            yield Line(moment, name, int(prefix[1]) if prefix else None, text)


class _Streams:
    """Live log lines of a job: one thread watches the job and one reads each pod, all into one queue."""

    def __init__(self, backend: Backend, job: str, seen: Mapping[str, str], since: str | None) -> None:
        self._backend = backend
        self._job = job
        self._seen = dict(seen)
        self._since = since
        self._stop = Stop()
        self._threads: list[threading.Thread] = []
        # Bounded, so that a pod that writes faster than this process prints is slowed down and not buffered.
        self._arrivals: queue.Queue[Line | Snapshot | _Ended] = queue.Queue(maxsize=250)
        self._reading: set[str] = set()
        self._read: dict[str, str] = {}
        """Pod → id of the container that was read last."""

    def lines(self, limit: float | None) -> Generator[Line]:
        """Yield lines as they arrive, until this time of :func:`time.monotonic`. The order within each pod is kept."""
        self._start(self._watch)
        try:
            yield from self._receive_lines(limit)
        finally:
            self._stop.request()
            with contextlib.suppress(queue.Empty):  # makes room for threads that wait for it
                while True:
                    self._arrivals.get_nowait()
            end = time.monotonic() + THREAD_END_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, end - time.monotonic()))

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()

    def _receive_lines(self, limit: float | None) -> Iterator[Line]:
        pods: list[Object] = []
        is_over = False
        while not (is_over and not self._reading):
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return
            try:
                arrival = self._arrivals.get(timeout=left)
            except queue.Empty:
                return
            match arrival:
                case Line() as line:
                    self._seen[line.pod] = line.time
                    yield line
                    continue
                case Snapshot() as snapshot:
                    pods = workers(snapshot.pods)
                    is_over = job_state(snapshot, {}).state in TERMINAL
                case _Ended(pod=None, error=error):
                    is_over, pods = True, []
                    if error is not None:
                        raise error
                case _Ended(pod=str(pod)):
                    self._reading.discard(pod)
            self._open(pods)

    def _open(self, pods: Iterable[Object]) -> None:
        """Start reading pods whose current container has not been read yet."""
        for pod in pods:
            name, container = str(pod["metadata"]["name"]), _container(pod)
            if container and name not in self._reading and self._read.get(name) != container:
                self._read[name] = container
                self._reading.add(name)
                self._start(self._stream, pod)

    def _stream(self, pod: Object) -> None:
        name = str(pod["metadata"]["name"])
        since = self._seen.get(name, self._since)
        while True:
            try:
                for line in _lines(self._backend, pod, since=since, live=True, stop=self._stop):
                    since = line.time
                    self._arrivals.put(line)
                    if self._stop.is_requested:
                        break
            except Unreachable:  # the pod may still run
                self._stop.wait(_RETRY_SECONDS)
                if not self._stop.is_requested:
                    continue
            except DdpError:
                pass
            self._arrivals.put(_Ended(name))
            return

    def _watch(self) -> None:
        error: BaseException | None = None
        try:
            for snapshot in self._backend.watch(self._job, reasons=(), stop=self._stop):
                self._arrivals.put(snapshot)
        except BaseException as raised:  # noqa: BLE001 - raised again where lines are read
            error = raised
        self._arrivals.put(_Ended(None, error))


@dataclass(frozen=True, slots=True)
class _Ended:
    """End of a thread: the reader of a pod, or the watcher of the job (``pod`` is None)."""

    pod: str | None
    error: BaseException | None = None


def _container(pod: Object) -> str:
    """Return an id of the pod's current container; empty if none has started."""
    status = main_status(pod)
    if not {"running", "terminated"}.intersection(status.get("state") or {}):
        return ""
    return f"{pod['metadata']['uid']}/{status.get('restartCount', 0)}"


WINDOW_SECONDS: Final = 1.0
"""Maximum distance of equal lines that are folded, in seconds."""


@dataclass(slots=True)
class Folded:
    """A log line with all its occurrences."""

    first: Line
    lines: list[Line] = field(default_factory=list)
    number: int = 0
    """Sequence number among all folded lines."""

    @property
    def ranks(self) -> list[int]:
        """Sorted ranks that wrote the line; empty for a line of a launcher."""
        return sorted(line.rank for line in self.lines if line.rank is not None)

    @property
    def text(self) -> str:
        """Line to print: prefixed with all ranks, or with the number of pods for launcher lines."""
        if len(self.lines) == 1:
            return self.first.text
        if self.first.rank is None:
            return f"[{len(self.lines)} pods] {self.first.text}"
        return f"[rank{format_ranges(self.ranks)} x{len(self.lines)}] {PREFIX.sub('', self.first.text)}"


def fold(lines: Iterable[Line | None]) -> Iterator[Folded]:
    """Yield lines in the order of their first occurrence, with equal lines folded.

    Args:
        lines: Lines in order of time. ``None`` marks a pause, after which all pending lines are yielded.
    """
    waiting: dict[tuple[bool, str], Folded] = {}
    last_numbers: dict[tuple[str, int | None], int] = {}
    """(pod, rank) → number of the folded line that it wrote last."""
    number = 0
    for line in lines:
        if line is None:
            yield from _pop_pending(waiting)
            continue
        key = (line.rank is None, PREFIX.sub("", line.text))
        now = epoch(line.time) or 0.0
        while waiting and now - (epoch(next(iter(waiting.values())).first.time) or 0.0) > WINDOW_SECONDS:
            yield waiting.pop(next(iter(waiting)))
        found = waiting.get(key)
        source = (line.pod, line.rank)
        if found is not None and last_numbers.get(source, 0) >= found.number:
            # This rank already wrote the line, or one that follows it.
            yield from _pop_pending(waiting, through=key)
            found = None
        if found is None:
            number += 1
            found = waiting[key] = Folded(line, number=number)
        found.lines.append(line)
        last_numbers[source] = found.number
    yield from _pop_pending(waiting)


def _pop_pending(waiting: dict[tuple[bool, str], Folded], through: tuple[bool, str] | None = None) -> Iterator[Folded]:
    """Remove and yield the pending lines up to a key; all of them without a key."""
    for key in list(waiting):
        yield waiting.pop(key)
        if key == through:
            return


def iter_with_timeout(lines: Iterable[Line], seconds: float = WINDOW_SECONDS) -> Iterator[Line | None]:
    """Yield lines as they arrive, and ``None`` after each pause of ``seconds``. Errors of ``lines`` are raised."""
    arrivals: queue.Queue[Line | BaseException | None] = queue.Queue(maxsize=10_000)
    threading.Thread(target=feed, args=(lines, arrivals), daemon=True).start()
    while True:
        try:
            arrival = arrivals.get(timeout=seconds)
        except queue.Empty:
            yield None
            continue
        if arrival is None:
            return
        if isinstance(arrival, BaseException):
            raise arrival
        yield arrival
