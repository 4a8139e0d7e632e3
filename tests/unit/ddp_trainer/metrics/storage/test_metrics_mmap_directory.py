"""Which boards speak for the ranks of now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.metrics.storage.mmap_directory import Slot, current, rank_board_path, read_pod_snapshot
from ddp_trainer.metrics.storage.mmap_store import RANK, Board, FileSnapshot
from ddp_trainer.metrics.storage.process import ProcessId, ProcessStats, is_ancestor, read_process_stats

ALIVE = ProcessStats(standing_still=False, cpu_seconds=1.0, resident_bytes=1.0, peak_resident_bytes=2.0)


def slot(rank: int, local_rank: int, of: int, *, start: int, alive: bool = True) -> Slot:
    identity: dict[str, str | int] = {"rank": rank, "local_rank": local_rank, "local_world_size": of}
    return Slot(FileSnapshot(ProcessId(100 + local_rank, start), identity, {}), ALIVE if alive else None)


def ranks(*slots: Slot) -> list[int]:
    return [claimed.rank for claimed in current(slots)]


def test_all_ranks_of_a_pod_are_told_in_order() -> None:
    assert ranks(slot(5, 1, 2, start=10), slot(4, 0, 2, start=11)) == [4, 5]


def test_ranks_of_a_larger_pod_before_are_not_told() -> None:
    left_over = [slot(local, local, 4, start=10, alive=False) for local in range(4)]
    assert ranks(*left_over[2:], slot(0, 0, 2, start=20), slot(1, 1, 2, start=20)) == [0, 1]


def test_a_slot_that_has_not_been_taken_up_yet_still_shows_its_dead_rank() -> None:
    assert ranks(slot(0, 0, 2, start=20), slot(1, 1, 2, start=10, alive=False)) == [0, 1]


def test_the_newer_of_two_claimants_has_the_rank() -> None:
    taken = current([slot(1, 0, 2, start=20), slot(1, 1, 2, start=10, alive=False)])
    assert [(claimed.rank, claimed.local_rank) for claimed in taken] == [(1, 0)]


def test_a_living_process_is_newer_than_a_dead_one_of_before_a_reboot() -> None:
    assert ranks(slot(0, 0, 1, start=50), slot(3, 3, 4, start=9_000_000, alive=False)) == [0]


def test_no_slot_no_rank() -> None:
    assert ranks() == []


def put(directory: Path, local_rank: int, identity: dict[str, str | int]) -> None:
    board = Board.open(rank_board_path(directory, local_rank), RANK)
    board.claim(ProcessId.current())
    board.describe(identity)


def test_a_survey_counts_what_it_cannot_read_and_passes_over_what_is_no_board(tmp_path: Path) -> None:
    put(tmp_path, 0, {"rank": 0, "local_rank": 0, "local_world_size": 9})
    put(tmp_path, 1, {"rank": "one", "local_rank": 1, "local_world_size": 9})
    rank_board_path(tmp_path, 2).write_bytes(b"damaged")
    rank_board_path(tmp_path, 3).mkdir()
    Board.open(rank_board_path(tmp_path, 4), RANK)
    (tmp_path / "agent.board").write_bytes(b"")
    (tmp_path / ".rank-5.board.tmp").write_bytes(b"half")
    (tmp_path / "rank-x.board").write_bytes(b"")
    seen = read_pod_snapshot(tmp_path)
    assert [claimed.rank for claimed in seen.ranks] == [0]
    assert seen.agent is None
    assert len(seen.stale) == 4


@pytest.mark.parametrize("name", ["missing", "file"])
def test_no_directory_has_no_boards(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    seen = read_pod_snapshot(tmp_path / name)
    assert (seen.agent, seen.ranks, seen.stale) == (None, (), ())


def started(pid: int) -> int:
    """Clock ticks from boot until a process started."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_process_that_has_ended_has_no_vitals_even_before_it_is_reaped() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        start = started(child.pid)
        process = ProcessId(child.pid, start)
        assert read_process_stats(process) is not None
        assert read_process_stats(ProcessId(child.pid, start - 1)) is None, "another process had this pid before"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_process_stats(process) is None
    assert read_process_stats(process) is None


def test_this_process_lives_and_uses_memory() -> None:
    me = ProcessId.current()
    stats = read_process_stats(me)
    assert stats is not None
    assert stats.resident_bytes > 1 << 20
    assert not stats.standing_still


def test_memory_that_was_given_back_is_in_the_peak_of_its_process_and_not_in_that_of_a_fork() -> None:
    many = 64 << 20
    program = (
        f"import os, sys; bytearray({many}); child = os.fork(); child and print(child, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent_stats, fork = (read_process_stats(ProcessId(pid, started(pid))) for pid in (parent.pid, child))
        parent.stdin.close()
    assert parent_stats is not None
    assert fork is not None
    assert parent_stats.peak_resident_bytes is not None
    assert fork.peak_resident_bytes is not None
    assert parent_stats.peak_resident_bytes - parent_stats.resident_bytes > many / 2
    assert fork.resident_bytes <= fork.peak_resident_bytes < parent_stats.peak_resident_bytes - many / 2


def test_a_parent_is_an_ancestor_and_oneself_is_not() -> None:
    parent = os.getppid()
    start = started(parent)
    assert is_ancestor(ProcessId(parent, start))
    assert not is_ancestor(ProcessId(parent, start + 1))
    assert not is_ancestor(ProcessId.current())
