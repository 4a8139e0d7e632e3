"""Files that are replaced whole, also by writers on other machines with equal process numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.process.atomic_files import draft_of, remove_stale_temp_files

CLAIM = """
from ddp_trainer.train.checkpoint.write_lease import WriteLease
def write(directory, size):
    WriteLease(directory, generation=1, fence=1, run_id="", token="t" * size).take()
"""
ERROR = """
from ddp_trainer.launch.agent.termination_report import _replace
def write(directory, size):
    _replace(directory / "error.json", '{"message": "' + "m" * size + '"}')
"""
HISTORY = """
from ddp_trainer.metrics.serve import history
def write(directory, size):
    kept = history.History(directory)
    kept.times, kept.series = [1.0] * size, {}
    kept.keep()
"""
LOOP = """
import os, sys, time
from pathlib import Path
assert os.getpid() == 1, os.getpid()
ends = time.monotonic() + float(sys.argv[3])
while time.monotonic() < ends:
    write(Path(sys.argv[1]), int(sys.argv[2]))
"""
WRITERS = {"CLAIM": CLAIM, "error.json": ERROR, "history.json": HISTORY}
SECONDS = float(os.environ.get("DDP_TEST_TEAR_SECONDS", "2"))


@pytest.mark.parametrize("name", WRITERS)
def test_writers_with_equal_process_numbers_never_tear_a_file(name: str, tmp_path: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("Equal process numbers need unshare(1) and namespaces of processes.")
    writers = [
        subprocess.Popen([*alone, sys.executable, "-c", WRITERS[name] + LOOP, str(tmp_path), str(size), str(SECONDS)])
        for size in (16, 900)
    ]
    read = torn = 0
    while any(writer.poll() is None for writer in writers):
        if not (tmp_path / name).exists():
            continue
        read += 1
        try:
            json.loads((tmp_path / name).read_bytes())
        except ValueError:
            torn += 1
    print(f"{name}: {read} reads, {torn} torn")
    assert [writer.returncode for writer in writers] == [0, 0]
    assert (read > 0, torn, [path.name for path in tmp_path.iterdir()]) == (True, 0, [name])


def test_a_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    def write() -> None:
        with draft_of(file) as draft:
            draft.write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert (file.read_text(), list(tmp_path.iterdir())) == ("old", [file])


def test_drafts_of_dead_writers_are_removed_and_those_of_others_are_not(tmp_path: Path) -> None:
    file, abandoned, fresh, other = (tmp_path / name for name in ("file", ".file.1", ".file.2", ".filed.1"))
    for path in (abandoned, fresh, other, file):
        path.write_text("")
    for path, age in ((abandoned, 4000), (fresh, 3000), (other, 4000)):
        os.utime(path, (file.stat().st_mtime - age,) * 2)
    remove_stale_temp_files(file)
    assert sorted(tmp_path.iterdir()) == sorted([fresh, other, file])
