"""The board: what is written is read, a restart goes on, a damaged file is replaced or refused."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.metrics.storage.mmap_store import AGENT, CELLS_AT, RANK, Board, InvalidBoardError, read
from ddp_trainer.metrics.storage.process import ProcessId

LOSS = RANK.cell_index[Metric.LOSS]
STEPS = RANK.cell_index[Metric.STEPS]
ME = ProcessId(4711, 123456)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.board"


def test_what_is_written_is_read(path: Path) -> None:
    board = Board.open(path, RANK)
    board.claim(ME)
    board.describe({"rank": 3, "device": "cpu"})
    board.cells[STEPS] = 7.0
    snapshot = read(path, RANK)
    assert snapshot.owner == ME == board.owner
    assert snapshot.identity == {"rank": 3, "device": "cpu"} == board.identity
    assert snapshot.values[Metric.STEPS] == 7.0


def test_a_gauge_is_absent_until_it_is_set_and_may_then_be_nan(path: Path) -> None:
    board = Board.open(path, RANK)
    assert Metric.LOSS not in read(path, RANK).values
    board.cells[LOSS] = math.nan
    assert math.isnan(read(path, RANK).values[Metric.LOSS])


def test_no_arithmetic_makes_the_value_that_means_absent(path: Path) -> None:
    board = Board.open(path, RANK)
    for nan in (math.nan, -math.nan, math.inf - math.inf, float("nan") * 0.0, math.inf * 0.0):
        board.cells[LOSS] = nan
        assert Metric.LOSS in read(path, RANK).values


def test_counters_are_there_at_zero_from_the_start(path: Path) -> None:
    Board.open(path, AGENT)
    values = read(path, AGENT).values
    assert {value for key, value in values.items() if key.startswith((Metric.RESTARTS, Metric.FAILURES))} == {0.0}


def test_a_process_that_comes_later_goes_on_in_the_same_file(path: Path) -> None:
    first = Board.open(path, RANK)
    first.cells[STEPS] += 5.0
    first.close()
    inode = path.stat().st_ino
    second = Board.open(path, RANK)
    second.cells[STEPS] += 1.0
    assert read(path, RANK).values[Metric.STEPS] == 6.0
    assert path.stat().st_ino == inode


def truncated(content: bytes) -> bytes:
    return content[:-1]


def longer(content: bytes) -> bytes:
    return content + b"\0"


def empty(_: bytes) -> bytes:
    return b""


def other_magic(content: bytes) -> bytes:
    return b"NOTBOARD" + content[8:]


def other_schema(content: bytes) -> bytes:
    return content[:8] + b"12345678" + content[16:]


@pytest.mark.parametrize("damage", [truncated, longer, empty, other_magic, other_schema])
def test_a_damaged_board_is_refused_by_the_reader_and_replaced_by_the_writer(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path.write_bytes(damage(RANK.initial_bytes()))
    with pytest.raises(InvalidBoardError):
        read(path, RANK)
    board = Board.open(path, RANK)
    board.cells[STEPS] = 1.0
    assert read(path, RANK).values[Metric.STEPS] == 1.0


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff\xfe", b"null"])
def test_an_identity_that_is_no_object_is_damage(path: Path, text: bytes) -> None:
    content = RANK.initial_bytes()
    path.write_bytes(content[:40] + text.ljust(CELLS_AT - 40, b"\0") + content[CELLS_AT:])
    with pytest.raises(InvalidBoardError):
        read(path, RANK)


def test_an_identity_that_does_not_fit_is_refused_with_both_sizes(path: Path) -> None:
    with pytest.raises(ValueError, match=r"1014 bytes does not fit the 984 bytes"):
        Board.open(path, RANK).describe({"rank": "x" * 1002})


def test_a_replaced_board_still_belongs_to_the_process_that_mapped_it(path: Path) -> None:
    """A file that is mapped is never truncated: that would be answered by SIGBUS in the rank."""
    old = Board.open(path, RANK)
    path.unlink()
    Board.open(path, RANK)
    old.cells[STEPS] = 9.0
    assert read(path, RANK).values[Metric.STEPS] == 0.0


def test_a_symbolic_link_is_replaced_and_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(RANK.initial_bytes())
    path.symlink_to(elsewhere)
    Board.open(path, RANK).cells[STEPS] = 1.0
    assert elsewhere.read_bytes() == RANK.initial_bytes()
    assert not path.is_symlink()


def test_a_pipe_in_the_place_of_a_board_does_not_block_the_reader(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises((InvalidBoardError, OSError)):
        read(path, RANK)


def test_a_failed_creation_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "rank-0.board").mkdir()
    with pytest.raises(OSError, match="directory"):
        Board.open(tmp_path / "rank-0.board", RANK)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank-0.board"]


def test_a_writer_killed_while_changing_leaves_numbers_that_are_read(path: Path) -> None:
    board = Board.open(path, RANK)
    board.cells[STEPS] = 2.0
    board.revision[0] = 41
    assert read(path, RANK).values[Metric.STEPS] == 2.0
    with board.atomic_update():
        assert board.revision[0] == 41
    assert board.revision[0] == 42
