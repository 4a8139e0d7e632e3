"""Position of each rank in its collectives, read from its heartbeat page and from torch's flight recorder.

The heartbeat page is read at each scrape. :class:`Collectives` queries the flight recorder of each rank from a thread
of the aggregator.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.metrics.families.rank_families import PROCESS_GROUPS
from ddp_trainer.process import flight_recorder, heartbeat_page
from ddp_trainer.process.flight_recorder import DEFAULT, FlightRecorderError, Record

QUERY_INTERVAL_SECONDS: Final = 15.0
"""Seconds between queries of one rank. A dump of 2000 collectives costs a rank about 30 ms of a C++ thread."""
SILENT_SECONDS: Final = 1.0
"""Seconds without a heartbeat after which a rank is queried immediately, because its heartbeat page is out of date."""
QUERY_LOOP_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 1.0
"""Timeout of a query in seconds. A flight recorder answers in milliseconds; that of a stopped rank does not answer."""


@dataclass(slots=True)
class Collectives:
    """Latest collective numbers of the ranks of one metrics directory."""

    directory: Path
    clock: Callable[[], float] = time.monotonic
    """Clock of the heartbeat pages."""
    _queried: dict[int, float] = field(default_factory=dict)
    """Local rank → time of the last query, answered or not."""
    _records: dict[int, tuple[float, Record]] = field(default_factory=dict)
    """Local rank → time of the last answered query, and its record."""

    def start(self) -> None:
        """Query all ranks repeatedly on a separate thread, so that a rank without an answer does not block a scrape."""
        threading.Thread(target=self._query_loop, name="collectives", daemon=True).start()

    def query_due_ranks(self) -> None:
        """Query each rank that has a server and is due. The last record of a rank is kept when it stops answering."""
        for local_rank, path in self._servers():
            asked_at = self.clock()
            if not self._is_due(local_rank, asked_at):
                continue
            self._queried[local_rank] = asked_at
            with contextlib.suppress(FlightRecorderError):
                self._records[local_rank] = (asked_at, flight_recorder.fetch_record(path, ANSWER_SECONDS))

    def values(self, local_rank: int) -> dict[str, float]:
        """Return the series of one rank; empty if it has no process group or its torch does not count collectives."""
        cells = self._heartbeat_cells(local_rank)
        if cells is None or not cells[heartbeat_page.HAS_GROUP]:
            return {}
        asked_at, record = self._records.get(local_rank, (float("-inf"), Record()))
        begun = {name: float(place.enqueued) for name, place in record.groups.items()}
        # The newer source counts: a live rank updates its heartbeat page every quarter of a second.
        if cells[heartbeat_page.SEQUENCE] >= 0 and asked_at < cells[heartbeat_page.BEAT] + heartbeat_page.BEAT_SECONDS:
            begun[DEFAULT] = cells[heartbeat_page.SEQUENCE]
        over = {name: float(place.completed) for name, place in record.groups.items() if place.completed >= 0}
        enqueued = {cell(Metric.ENQUEUED, name): number for name, number in begun.items() if name in PROCESS_GROUPS}
        # A record of the previous group may hold higher numbers than this group has begun.
        return enqueued | {
            cell(Metric.COMPLETED, name): number
            for name, number in over.items()
            if name in PROCESS_GROUPS and number <= begun.get(name, -1.0)
        }

    def _query_loop(self) -> None:
        while True:
            self.query_due_ranks()
            time.sleep(QUERY_LOOP_SECONDS)

    def _is_due(self, local_rank: int, now: float) -> bool:
        last = self._queried.get(local_rank, float("-inf"))
        if now >= last + QUERY_INTERVAL_SECONDS:
            return True
        cells = self._heartbeat_cells(local_rank)
        if cells is None or not cells[heartbeat_page.HAS_GROUP]:
            return False
        return last < cells[heartbeat_page.BEAT] + SILENT_SECONDS <= now

    def _servers(self) -> Iterable[tuple[int, Path]]:
        for path in sorted(self.directory.glob("rank-*.sock")):
            number = path.stem.removeprefix("rank-")
            if number.isdecimal():
                yield int(number), path

    def _heartbeat_cells(self, local_rank: int) -> memoryview[float] | None:
        try:
            return heartbeat_page.open_page(str(self.directory / f"rank-{local_rank}.page"))
        except (OSError, ValueError):
            return None
