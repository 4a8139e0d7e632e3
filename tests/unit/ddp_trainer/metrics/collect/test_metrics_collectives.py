"""Progress of ranks in their collectives, by heartbeat page and flight recorder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.metrics.collect.collectives import Collectives
from ddp_trainer.process import heartbeat_page
from tests.support.clocks import Clock
from tests.support.recorder_server import entry, record, recorder_at

BEGUN = "ddp_collective_last_enqueued_sequence{default}"
OVER = "ddp_collective_last_completed_sequence{default}"


@pytest.fixture
def cells(tmp_path: Path) -> memoryview[float]:
    heartbeat_page.create(str(tmp_path / "rank-0.page"))
    cells = heartbeat_page.open_page(str(tmp_path / "rank-0.page"))
    cells[heartbeat_page.HAS_GROUP], cells[heartbeat_page.SEQUENCE], cells[heartbeat_page.BEAT] = 1.0, 7.0, 100.0
    return cells


@pytest.fixture
def clock() -> Clock:
    return Clock(110.0)  # ten seconds after the last beat


@pytest.fixture
def collectives(tmp_path: Path, clock: Clock) -> Collectives:
    return Collectives(tmp_path, clock=clock)


@pytest.mark.usefixtures("cells")
def test_without_a_recorder_the_heartbeat_page_has_the_last_collective_begun(collectives: Collectives) -> None:
    collectives.query_due_ranks()
    assert collectives.values(0) == {BEGUN: 7.0}
    assert collectives.values(1) == {}


def test_the_position_of_a_silent_rank_is_that_of_its_recorder(
    tmp_path: Path, collectives: Collectives, cells: memoryview[float], clock: Clock
) -> None:
    with recorder_at(tmp_path / "rank-0.sock", {"fr_trace_json": record({0: (8, 7)}, entry(8))}):
        collectives.query_due_ranks()
    assert collectives.values(0) == {BEGUN: 8.0, OVER: 7.0}
    clock.now += 60.0
    collectives.query_due_ranks()  # no server answers now
    assert collectives.values(0) == {BEGUN: 8.0, OVER: 7.0}
    cells[heartbeat_page.BEAT], cells[heartbeat_page.SEQUENCE] = 120.0, 12.0
    assert collectives.values(0) == {BEGUN: 12.0, OVER: 7.0}


def test_at_most_four_groups_are_reported(tmp_path: Path, collectives: Collectives, cells: memoryview[float]) -> None:
    groups = {number: (number, number) for number in range(9)}
    with recorder_at(tmp_path / "rank-0.sock", {"fr_trace_json": record(groups, entry(1))}):
        collectives.query_due_ranks()
    assert len(collectives.values(0)) == 8
    cells[heartbeat_page.HAS_GROUP] = 0.0
    assert collectives.values(0) == {}


def test_a_record_of_the_group_before_is_left_out(
    tmp_path: Path, collectives: Collectives, cells: memoryview[float]
) -> None:
    with recorder_at(tmp_path / "rank-0.sock", {"fr_trace_json": record({0: (900, 900)}, entry(900))}):
        collectives.query_due_ranks()
    cells[heartbeat_page.BEAT], cells[heartbeat_page.SEQUENCE] = 120.0, 2.0
    assert collectives.values(0) == {BEGUN: 2.0}


def test_a_torch_that_does_not_count_has_no_series(collectives: Collectives, cells: memoryview[float]) -> None:
    cells[heartbeat_page.SEQUENCE] = -1.0
    assert collectives.values(0) == {}


def test_a_rank_is_queried_at_intervals_and_when_it_falls_silent(
    tmp_path: Path, collectives: Collectives, cells: memoryview[float], clock: Clock
) -> None:
    queried = []
    for moment, beat in ((110.0, 109.9), (111.0, 110.9), (112.0, 110.9), (113.0, 110.9), (128.0, 110.9)):
        clock.now, cells[heartbeat_page.BEAT] = moment, beat
        number = int(moment)
        with recorder_at(tmp_path / "rank-0.sock", {"fr_trace_json": record({0: (number, number)}, entry(1))}):
            collectives.query_due_ranks()
        (tmp_path / "rank-0.sock").unlink()
        queried.append(collectives.values(0).get(OVER) == number)
        cells[heartbeat_page.SEQUENCE] = 1000.0
    assert queried == [False, False, True, False, True]
