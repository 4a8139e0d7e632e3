"""Metrics files, which are memory-mapped files of numbers, and their directory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.metrics.storage.mmap_directory import Slot, current, rank_metrics_path, read_pod_snapshot
from ddp_trainer.metrics.storage.mmap_store import (
    AGENT,
    CELLS_AT,
    RANK,
    FileSnapshot,
    InvalidMetricsFileError,
    MetricsFile,
    read,
)
from ddp_trainer.metrics.storage.process import ProcessId, ProcessStats, is_ancestor, read_process_stats

LOSS = RANK.cell_index[Metric.LOSS]
STEPS = RANK.cell_index[Metric.STEPS]
ME = ProcessId(4711, 123456)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.board"


def test_what_is_written_is_read(path: Path) -> None:
    metrics_file = MetricsFile.open(path, RANK)
    metrics_file.claim(ME)
    metrics_file.describe({"rank": 3, "device": "cpu"})
    metrics_file.cells[STEPS] = 7.0
    snapshot = read(path, RANK)
    assert snapshot.owner == ME == metrics_file.owner
    assert snapshot.identity == {"rank": 3, "device": "cpu"} == metrics_file.identity
    assert snapshot.values[Metric.STEPS] == 7.0


def test_a_gauge_is_absent_until_it_is_set_and_may_then_be_nan(path: Path) -> None:
    metrics_file = MetricsFile.open(path, RANK)
    assert Metric.LOSS not in read(path, RANK).values
    metrics_file.cells[LOSS] = math.nan
    assert math.isnan(read(path, RANK).values[Metric.LOSS])


def test_no_arithmetic_makes_the_value_that_means_absent(path: Path) -> None:
    metrics_file = MetricsFile.open(path, RANK)
    for nan in (math.nan, -math.nan, math.inf - math.inf, float("nan") * 0.0, math.inf * 0.0):
        metrics_file.cells[LOSS] = nan
        assert Metric.LOSS in read(path, RANK).values


def test_counters_are_there_at_zero_from_the_start(path: Path) -> None:
    MetricsFile.open(path, AGENT)
    values = read(path, AGENT).values
    assert {value for key, value in values.items() if key.startswith((Metric.RESTARTS, Metric.FAILURES))} == {0.0}


def test_a_later_process_continues_in_the_same_file(path: Path) -> None:
    first = MetricsFile.open(path, RANK)
    first.cells[STEPS] += 5.0
    first.close()
    inode = path.stat().st_ino
    second = MetricsFile.open(path, RANK)
    second.cells[STEPS] += 1.0
    assert read(path, RANK).values[Metric.STEPS] == 6.0
    assert path.stat().st_ino == inode


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "empty": lambda _: b"",
    "another magic": lambda content: b"NOTBOARD" + content[8:],
    "another schema": lambda content: content[:8] + b"12345678" + content[16:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_readers_refuse_a_damaged_board_and_writers_replace_it(path: Path, damage: Callable[[bytes], bytes]) -> None:
    path.write_bytes(damage(RANK.initial_bytes()))
    with pytest.raises(InvalidMetricsFileError):
        read(path, RANK)
    metrics_file = MetricsFile.open(path, RANK)
    metrics_file.cells[STEPS] = 1.0
    assert read(path, RANK).values[Metric.STEPS] == 1.0


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff\xfe", b"null"])
def test_an_identity_that_is_no_object_is_damage(path: Path, text: bytes) -> None:
    content = RANK.initial_bytes()
    path.write_bytes(content[:40] + text.ljust(CELLS_AT - 40, b"\0") + content[CELLS_AT:])
    with pytest.raises(InvalidMetricsFileError):
        read(path, RANK)


def test_an_identity_that_does_not_fit_is_refused_with_both_sizes(path: Path) -> None:
    with pytest.raises(ValueError, match=r"1014 bytes does not fit the 984 bytes"):
        MetricsFile.open(path, RANK).describe({"rank": "x" * 1002})


def test_a_replaced_board_still_belongs_to_the_process_that_mapped_it(path: Path) -> None:
    """A mapped file is never truncated, which would kill the rank by SIGBUS."""
    old = MetricsFile.open(path, RANK)
    path.unlink()
    MetricsFile.open(path, RANK)
    old.cells[STEPS] = 9.0
    assert read(path, RANK).values[Metric.STEPS] == 0.0


def test_a_symbolic_link_is_replaced_and_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(RANK.initial_bytes())
    path.symlink_to(elsewhere)
    MetricsFile.open(path, RANK).cells[STEPS] = 1.0
    assert elsewhere.read_bytes() == RANK.initial_bytes()
    assert not path.is_symlink()


def test_a_pipe_instead_of_a_board_does_not_block_the_reader(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises((InvalidMetricsFileError, OSError)):
        read(path, RANK)


def test_a_failed_creation_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "rank-0.board").mkdir()
    with pytest.raises(OSError, match="directory"):
        MetricsFile.open(tmp_path / "rank-0.board", RANK)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank-0.board"]


def test_a_writer_killed_while_changing_leaves_numbers_that_are_read(path: Path) -> None:
    metrics_file = MetricsFile.open(path, RANK)
    metrics_file.cells[STEPS] = 2.0
    metrics_file.revision[0] = 41
    assert read(path, RANK).values[Metric.STEPS] == 2.0
    with metrics_file.atomic_update():
        assert metrics_file.revision[0] == 41
    assert metrics_file.revision[0] == 42


ALIVE = ProcessStats(standing_still=False, cpu_seconds=1.0, resident_bytes=1.0, peak_resident_bytes=2.0)


def slot(rank: int, local_rank: int, of: int, *, start: int, alive: bool = True) -> Slot:
    identity: dict[str, str | int] = {"rank": rank, "local_rank": local_rank, "local_world_size": of}
    return Slot(FileSnapshot(ProcessId(100 + local_rank, start), identity, {}), ALIVE if alive else None)


FORMER = [slot(old, old, 4, start=10, alive=False) for old in (2, 3)]
"""Slots of an earlier and larger pod."""


@pytest.mark.parametrize(
    ("slots", "local_ranks"),
    [
        pytest.param([slot(5, 1, 2, start=10), slot(4, 0, 2, start=11)], {4: 0, 5: 1}, id="all, in order"),
        pytest.param(
            [*FORMER, slot(0, 0, 2, start=20), slot(1, 1, 2, start=20)], {0: 0, 1: 1}, id="none of the former"
        ),
        pytest.param([slot(0, 0, 2, start=20), slot(1, 1, 2, start=10, alive=False)], {0: 0, 1: 1}, id="a dead rank"),
        pytest.param([slot(1, 0, 2, start=20), slot(1, 1, 2, start=10, alive=False)], {1: 0}, id="the newer of two"),
        pytest.param([slot(0, 0, 1, start=50), slot(3, 3, 4, start=9**8, alive=False)], {0: 0}, id="after a reboot"),
    ],
)
def test_a_pod_shows_the_ranks_that_hold_its_slots_now(slots: list[Slot], local_ranks: dict[int, int]) -> None:
    assert [(claimed.rank, claimed.local_rank) for claimed in current(slots)] == list(local_ranks.items())


def put(directory: Path, local_rank: int, identity: dict[str, str | int]) -> None:
    metrics_file = MetricsFile.open(rank_metrics_path(directory, local_rank), RANK)
    metrics_file.claim(ProcessId.current())
    metrics_file.describe(identity)


def test_a_survey_counts_what_it_cannot_read_and_passes_over_other_files(tmp_path: Path) -> None:
    put(tmp_path, 0, {"rank": 0, "local_rank": 0, "local_world_size": 9})
    put(tmp_path, 1, {"rank": "one", "local_rank": 1, "local_world_size": 9})
    rank_metrics_path(tmp_path, 2).write_bytes(b"damaged")
    rank_metrics_path(tmp_path, 3).mkdir()
    MetricsFile.open(rank_metrics_path(tmp_path, 4), RANK)
    (tmp_path / "agent.board").write_bytes(b"")
    (tmp_path / ".rank-5.board.tmp").write_bytes(b"half")
    (tmp_path / "rank-x.board").write_bytes(b"")
    seen = read_pod_snapshot(tmp_path)
    assert ([claimed.rank for claimed in seen.ranks], seen.agent, len(seen.stale)) == ([0], None, 4)


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


def test_memory_that_was_given_back_is_in_the_peak_of_its_process_and_not_in_that_of_a_fork() -> None:
    many = 64 << 20
    program = f"import os, sys; bytearray({many}); pid = os.fork(); pid and print(pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        parent_stats, fork = (read_process_stats(ProcessId(pid, started(pid))) for pid in (parent.pid, child))
        parent.stdin.close()
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
