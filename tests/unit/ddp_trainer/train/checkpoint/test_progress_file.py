"""The odometer's file: cut off, damaged, or of a process that is killed while it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.train.checkpoint.progress_file import FILE, ProgressFile, RunProgress
from ddp_trainer.train.config.goodput_account import Account


def account(seconds: float) -> Account:
    saved = Account(until=1000.0)
    saved.add_time(JobTime.PRODUCTIVE, 1000.0 + seconds)
    return saved


FORMER = RunProgress(7, 2, 1000.0, account(1.0))
LAST = RunProgress(8, 3, 1000.0, account(2.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two readings of a run, one after the other."""
    progress = ProgressFile(tmp_path, "run")
    for reading in (FORMER, LAST):
        progress.write(reading)
        progress.write_account(reading.account)
    progress.close()
    return tmp_path / FILE


def read(file: Path) -> tuple[RunProgress, list[str]]:
    """What the next process reads, and what it says about it."""
    messages: list[str] = []
    return ProgressFile(file.parent, "run", messages.append).read(), messages


def test_what_is_whole_is_read_without_a_word(file: Path) -> None:
    assert read(file) == (LAST, [])


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


def test_a_file_of_something_else_is_one_sentence_and_is_written_anew(file: Path) -> None:
    file.write_bytes(b"\xff" * 4096)
    messages: list[str] = []
    progress = ProgressFile(file.parent, "run", messages.append)
    assert progress.read() == RunProgress()
    (sentence,) = messages
    assert sentence.startswith(f"{file} is damaged: ")
    assert sentence.endswith("training continues.")
    for reading in (FORMER, LAST):
        progress.write(reading)
        progress.write_account(reading.account)
    progress.close()
    assert read(file) == (LAST, [])


def test_a_file_that_cannot_be_read_is_one_sentence(file: Path) -> None:
    file.unlink()
    file.mkdir()
    reading, (sentence,) = read(file)
    assert reading == RunProgress()
    assert sentence.startswith(f"{file} cannot be read (Is a directory): ")


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_one(tmp_path: Path) -> None:
    code = (
        "import sys, itertools, pathlib\n"
        "from ddp_trainer.train.checkpoint.progress_file import ProgressFile, RunProgress\n"
        "odometer = ProgressFile(pathlib.Path(sys.argv[1]), 'run')\n"
        "for step in itertools.count(1):\n"
        "    odometer.write(RunProgress(step, 2 * step, 1000.0))\n"
        "    if step == 1000: print('writes', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        process.kill()
    reading, messages = read(tmp_path / FILE)
    assert reading.highest_step >= 1000
    assert (reading.lost_steps, messages) == (2 * reading.highest_step, [])


def test_the_odometer_of_another_run_or_a_damaged_one_reads_zero(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path, "run")
    progress.write(RunProgress(7, 2, 1.0))
    progress.close()
    assert ProgressFile(tmp_path, "another").read() == RunProgress()
    (tmp_path / "ODOMETER").write_bytes(b"torn")
    assert ProgressFile(tmp_path, "run").read() == RunProgress()


def test_an_odometer_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    ProgressFile(tmp_path / "nowhere", "run").write(RunProgress(7, 2, 1.0))
