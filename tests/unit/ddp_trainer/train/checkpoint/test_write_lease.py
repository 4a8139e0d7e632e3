"""The write lease and the progress file of a checkpoint directory, with wrong clocks and damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.train.checkpoint.progress_file import FILE, ProgressFile, RunProgress
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.config.goodput_account import Account
from ddp_trainer.train.utils.errors import InvalidLease, StaleGeneration

NOW = 1_800_000_000.0
DAY = 86_400_000
FENCE = int(NOW * 1000)
YEAR_AHEAD = FENCE + 365 * DAY
TOKENS = map(str, count())


def claim_of(directory: Path, fence: int, *, run_id: str = "run", now: float = NOW) -> WriteLease:
    return WriteLease(directory, generation=1, fence=fence, run_id=run_id, token=next(TOKENS), clock=lambda: now)


def test_a_group_that_a_right_clock_replaced_stays_out_however_great_its_next_fences_are(tmp_path: Path) -> None:
    stale, newer = claim_of(tmp_path, YEAR_AHEAD), claim_of(tmp_path, FENCE)
    stale.take()
    newer.take()
    with pytest.raises(StaleGeneration) as info:
        stale.renew(generation=2, fence=YEAR_AHEAD + 1)
    assert str(tmp_path / "CLAIM") in str(info.value)
    assert "365 days ahead" in str(info.value)
    assert (can_publish(newer), can_publish(stale)) == (True, False)


def test_a_refusal_names_the_file_to_delete(tmp_path: Path) -> None:
    claim_of(tmp_path, FENCE).take()
    with pytest.raises(StaleGeneration, match=r"delete .*CLAIM if no other worker group of this run is running"):
        claim_of(tmp_path, FENCE - 1).take()


def test_a_writer_whose_claim_was_removed_stops(tmp_path: Path) -> None:
    writer = claim_of(tmp_path, FENCE)
    writer.take()
    (tmp_path / "CLAIM").unlink()
    with pytest.raises(StaleGeneration, match="was removed"):
        writer.check()


CLAIM = {"token": "t", "generation": 1, "fence": 1, "run_id": "run", "pid": 1}
DAMAGED = {
    "empty": b"",
    "torn": json.dumps(CLAIM).encode()[:-9],
    "not text": b"\xff\xfe",
    "a field is missing": json.dumps({**CLAIM, "fence": None}).encode(),
    "a number of 5,000 digits": json.dumps(CLAIM).replace('"fence": 1', f'"fence": {"9" * 5000}').encode(),
    "nested": b"[" * 4000,
    "too long": json.dumps({**CLAIM, "token": "t" * 10_000}).encode(),
    "infinite": json.dumps({**CLAIM, "fence": float("inf")}).encode(),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("run_id", ["run", "another run", ""])
def test_a_damaged_claim_lets_nobody_write_and_the_error_names_it(content: bytes, run_id: str, tmp_path: Path) -> None:
    started = claim_of(tmp_path, FENCE)
    started.take()
    (tmp_path / "CLAIM").write_bytes(content)
    for demand in (claim_of(tmp_path, FENCE + 1, run_id=run_id).take, started.check):
        with pytest.raises(InvalidLease) as info:
            demand()
        assert str(tmp_path / "CLAIM") in str(info.value)
        assert "delete the file" in str(info.value)
        assert len(str(info.value).splitlines()) == 1
        assert info.value.exit_code == Exit.USAGE
    assert (tmp_path / "CLAIM").read_bytes() == content


def succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except StaleGeneration:
        return False
    return True


def can_publish(writer: WriteLease) -> bool:
    return succeeds(writer.check)


DAYS = st.sampled_from([-365, -1, 0, 1, 365])


@given(st.lists(st.tuples(DAYS, DAYS), min_size=2, max_size=12))
def test_at_most_one_writer_may_publish_whatever_the_clocks_of_stores_and_machines_are(
    tmp_path_factory: pytest.TempPathFactory, clocks: list[tuple[int, int]]
) -> None:
    directory, started = tmp_path_factory.mktemp("claims"), []
    for store, machine in clocks:
        writer = claim_of(directory, FENCE + store * DAY, now=NOW + machine * 86_400)
        if succeeds(writer.take):
            started.append(writer)
            assert can_publish(writer)
        assert sum(map(can_publish, started)) == 1


@given(st.permutations(range(6)), st.sampled_from([0, 365]))
def test_the_latest_group_of_one_sequence_is_the_writer_in_whatever_order_they_start(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], days_ahead: int
) -> None:
    directory = tmp_path_factory.mktemp("claims")
    writers = {number: claim_of(directory, FENCE + days_ahead * DAY + number) for number in order}
    started = [number for number in order if succeeds(writers[number].take)]
    assert [number for number in started if can_publish(writers[number])] == [max(order)]


def account(seconds: float) -> Account:
    saved = Account(until=1000.0)
    saved.add_time(JobTime.PRODUCTIVE, 1000.0 + seconds)
    return saved


FORMER = RunProgress(7, 2, 1000.0, account(1.0))
LAST = RunProgress(8, 3, 1000.0, account(2.0))


def record(progress: ProgressFile) -> None:
    for reading in (FORMER, LAST):
        progress.write(reading)
        progress.write_account(reading.account)
    progress.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A progress file after two records."""
    record(ProgressFile(tmp_path, "run"))
    return tmp_path / FILE


def read(file: Path) -> tuple[RunProgress, list[str]]:
    """Return what the next process reads, and its messages."""
    messages: list[str] = []
    return ProgressFile(file.parent, "run", messages.append).read(), messages


def test_a_damaged_byte_loses_nothing_but_what_the_last_record_added(file: Path) -> None:
    content = file.read_bytes()
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        reading, messages = read(file)
        assert (reading.highest_step, reading.lost_steps) in {(7, 2), (8, 3)}, place
        assert reading.account in (FORMER.account, LAST.account), place
        assert len(messages) <= 1
        if reading != LAST:
            assert messages == [f"{file} is damaged in part; its second copy is intact and is used."]


def test_a_file_that_is_cut_off_anywhere_is_read_as_far_as_it_goes(file: Path) -> None:
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        reading, messages = read(file)
        assert (reading.highest_step, reading.lost_steps) in {(0, 0), (7, 2), (8, 3)}, length
        assert len(messages) <= 1


def test_a_file_of_something_else_is_one_sentence_and_is_overwritten(file: Path) -> None:
    file.write_bytes(b"\xff" * 4096)
    messages: list[str] = []
    progress = ProgressFile(file.parent, "run", messages.append)
    assert progress.read() == RunProgress()
    (sentence,) = messages
    assert sentence.startswith(f"{file} is damaged: ")
    assert sentence.endswith("training continues.")
    record(progress)
    assert read(file) == (LAST, [])


def test_a_file_that_cannot_be_read_is_one_sentence(file: Path) -> None:
    file.unlink()
    file.mkdir()
    reading, (sentence,) = read(file)
    assert reading == RunProgress()
    assert sentence.startswith(f"{file} cannot be read (Is a directory): ")


def test_the_progress_file_of_another_run_reads_zero(file: Path) -> None:
    assert ProgressFile(file.parent, "another").read() == RunProgress()
