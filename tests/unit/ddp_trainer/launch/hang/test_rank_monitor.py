"""Status of a rank by its heartbeat page: a real page, the process of the test, and a clock that the test sets."""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.hanging import WARNING, RankState, RankStatus
from ddp_trainer.common.time_classes import Section
from ddp_trainer.launch.hang.rank_monitor import RankWatch
from ddp_trainer.launch.rendezvous.hang_limits import NOTICE_SECONDS, WARM_UP_MOVES, HangPolicy, StepTimeHistory
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.recorder import SECTION_NUMBERS

FLOOR = 10.0


class Rank:
    """A worker of a test, and the agent's monitor of it."""

    def __init__(self, folder: Path, *, has_group: bool = True) -> None:
        self.now = 100.0
        path = str(folder / "rank-0.page")
        heartbeat_page.create(path)
        self.cells = heartbeat_page.open_page(path)
        self.cells[heartbeat_page.HAS_GROUP] = float(has_group)
        who: dict[str, Any] = {"rank": 3, "local_rank": 0, "node": "w-1", "pid": os.getpid(), "folder": folder}
        files: dict[str, Any] = {"page": Path(path), "cells": heartbeat_page.open_page(path)}
        self.watch = RankWatch(**who, **files, pace=StepTimeHistory(HangPolicy(floor=FLOOR)), moved_at=self.now)

    def look(self, after: float = 0.0, *, beats: bool = True) -> RankStatus:
        self.now += after
        if beats:
            self.cells[heartbeat_page.BEAT] = self.now
        return self.watch.observe(self.now)

    def step(self, seconds: float = 0.5) -> RankStatus:
        """One collective, ``seconds`` after the last."""
        self.cells[heartbeat_page.TOTAL] += 1
        self.cells[heartbeat_page.SEQUENCE] = self.cells[heartbeat_page.TOTAL]
        return self.look(seconds)

    def enter(self, section: Section) -> None:
        self.cells[heartbeat_page.SECTION], self.cells[heartbeat_page.SINCE] = SECTION_NUMBERS[section], self.now

    def warm_up(self) -> None:
        for _ in range(WARM_UP_MOVES + 2):
            self.step()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def receive(folder: Path) -> None:
    """Receive data at a socket, which Linux does not count as I/O of the process."""
    sender, receiver = socket.socketpair()
    with sender, receiver, mmap.mmap(-1, 1 << 20) as memory, memoryview(memory) as room:
        for start in range(0, len(memory), 1 << 14):
            sender.sendall(b"x" * (1 << 14))
            receiver.recv_into(room[start:], 1 << 14, socket.MSG_WAITALL)


@pytest.mark.parametrize("move", [receive, lambda folder: (folder / "weights").write_bytes(bytes(1 << 20))])
def test_data_that_moves_is_work_before_the_first_steps(
    rank: Rank, tmp_path: Path, move: Callable[[Path], None]
) -> None:
    rank.step()
    rank.look(20.0)
    assert not rank.look(5.0).is_busy
    move(tmp_path)
    assert rank.look(5.0).is_busy
    assert not rank.look(20.0).is_busy
    rank.warm_up()
    move(tmp_path)
    assert not rank.look(5.0).is_busy


def test_a_rank_before_its_first_collective_is_reported_and_has_no_limit(rank: Rank) -> None:
    status = rank.look(10_000)
    assert (status.limit, status.notice) == (None, NOTICE_SECONDS)


def test_a_rank_without_a_group_is_not_reported_and_has_no_limit(tmp_path: Path) -> None:
    rank = Rank(tmp_path, has_group=False)
    rank.cells[heartbeat_page.TOTAL] = 5
    status = rank.look(10_000)
    assert (status.limit, status.sequence, status.notice) == (None, -1, None)


def test_a_rank_that_has_left_its_group_has_no_limit(rank: Rank) -> None:
    rank.warm_up()
    rank.cells[heartbeat_page.HAS_GROUP] = 0
    assert rank.look(10_000).limit is None


def test_the_time_before_the_first_collective_does_not_count(rank: Rank) -> None:
    rank.look(400)
    rank.warm_up()
    assert rank.look().limit == FLOOR


def test_a_pause_below_the_limit_is_no_alarm(rank: Rank) -> None:
    rank.warm_up()
    assert not rank.look(WARNING * FLOOR - 0.1).has_exceeded_limit(WARNING)
    assert not rank.step().has_exceeded_limit(WARNING)


def test_a_rank_without_progress_exceeds_the_warning_first_and_its_limit_later(rank: Rank) -> None:
    rank.warm_up()
    status = rank.look(WARNING * FLOOR + 0.1)
    assert (status.has_exceeded_limit(WARNING), status.has_exceeded_limit(1.0)) == (True, False)
    assert rank.look(FLOOR).has_exceeded_limit(1.0)


def test_an_evaluation_and_a_checkpoint_have_limits_of_their_own(rank: Rank) -> None:
    for _ in range(WARM_UP_MOVES + 1):
        rank.enter(Section.FORWARD)
        rank.look(0.5)
    for section in (Section.EVALUATION, Section.CHECKPOINT):
        rank.enter(section)
        rank.look()
        assert not rank.look(25 * FLOOR).has_exceeded_limit(WARNING)
    rank.enter(Section.FORWARD)
    rank.look()
    assert rank.look(2 * FLOOR).has_exceeded_limit(1.0)


def test_a_rank_whose_heartbeat_stops_is_deaf(rank: Rank) -> None:
    rank.warm_up()
    assert rank.look(5.0).state is RankState.ALIVE
    assert rank.look(5.0, beats=False).state is RankState.ALIVE  # a turn may be late, on a busy machine
    assert rank.look(5.0, beats=False).state is RankState.DEAF


def test_the_answer_of_a_worker_is_part_of_its_status(rank: Rank, tmp_path: Path) -> None:
    rank.warm_up()
    of_default, of_other = ["0", 6, "all_reduce", [[4]], True], ["1", 1, "broadcast", [[2]], True]
    collectives = [of_default, of_other, ["0", 7, "barrier", [], False]]
    answer = {"place": "train.py:3 in step", "stack": "Thread MainThread\n", "collectives": collectives}
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    rank.watch.request_stacks()
    assert rank.watch.is_response_pending(rank.now)
    assert rank.watch.observe_with_response(rank.now).place == ""  # not yet
    rank.cells[heartbeat_page.ANSWERED] = rank.cells[heartbeat_page.REQUESTED]
    status = rank.watch.observe_with_response(rank.now)
    assert (status.place, status.waits_in) == ("train.py:3 in step", "barrier[]")
    assert status.collectives == ("all_reduce[[4]]", "barrier[]")


def test_an_incomplete_answer_is_ignored(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text('{"place": ')
    rank.watch.request_stacks()
    rank.cells[heartbeat_page.ANSWERED] = rank.cells[heartbeat_page.REQUESTED]
    assert rank.watch.observe_with_response(rank.now).stack == ""


def test_a_rank_without_a_handler_is_sent_no_signal(rank: Rank) -> None:
    assert rank.watch.stack_dump_signal() == 0
    rank.cells[heartbeat_page.SIGNAL] = 50.0  # in the page, but no handler of the process
    assert rank.watch.stack_dump_signal() == 0
