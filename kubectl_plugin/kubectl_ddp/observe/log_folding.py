"""Folding of equal log lines of several ranks into one line with the list of ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kubectl_ddp.kube.timestamps import epoch
from kubectl_ddp.observe.log_stream import Line
from kubectl_ddp.util.concurrency import feed
from kubectl_ddp.util.terminal import PREFIX
from kubectl_ddp.util.text_table import format_ranges

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
    said_last: dict[tuple[str, int | None], int] = {}
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
        who = (line.pod, line.rank)
        if found is not None and said_last.get(who, 0) >= found.number:
            # This rank already wrote the line, or one that follows it.
            yield from _pop_pending(waiting, through=key)
            found = None
        if found is None:
            number += 1
            found = waiting[key] = Folded(line, number=number)
        found.lines.append(line)
        said_last[who] = found.number
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
