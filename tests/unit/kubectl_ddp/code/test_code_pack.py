"""A directory as it travels: the same bytes for the same files, and a sentence where it cannot."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from kubectl_ddp.code import pack, script_inside
from kubectl_ddp.code.archive import LARGEST_BYTES, MAX_UNPACKED_BYTES
from kubectl_ddp.errors import UsageError
from tests.support.archives import names_in, opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in {"train.py": "import lib.net\n", "lib/net.py": "x = 1\n", "lib/__pycache__/net.pyc": "?"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref")
    return root


def test_the_same_files_make_the_same_archive_whenever_and_wherever(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(project, copy)
    os.utime(copy / "train.py", (1, 1))
    (copy / "lib" / "net.py").chmod(0o600)
    first, second = pack(str(project)), pack(str(copy))
    assert first == second
    assert (first.is_archive, first.files, names_in(first)) == (True, 2, ["lib/net.py", "train.py"])
    (copy / "train.py").write_text("import lib.net  # changed\n")
    assert pack(str(copy)).hash != first.hash


def test_what_may_be_run_stays_so_and_nothing_tells_who_packed_it(project: Path) -> None:
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o700)
    with opened(pack(str(project))) as archive:
        entries = {entry.name: entry for entry in archive}
    assert (entries["run.sh"].mode, entries["train.py"].mode) == (0o755, 0o644)
    assert {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in entries.values()} == {(0, 0, "", 0)}


def test_a_link_within_stays_a_link_and_one_that_leads_out_is_refused(project: Path, tmp_path: Path) -> None:
    (project / "same.py").symlink_to("lib/net.py")
    with opened(pack(str(project))) as archive:
        assert archive.getmember("same.py").linkname == "lib/net.py"
    (tmp_path / "secret").write_text("s")
    (project / "out").symlink_to("../secret")
    with pytest.raises(UsageError, match=r"the link 'out' leads to '\.\./secret', outside of what is sent\."):
        pack(str(project))
    (project / ".ddpignore").write_text("out\n")
    assert "out" not in names_in(pack(str(project)))


def test_a_loop_of_links_travels_as_git_keeps_it(project: Path) -> None:
    (project / "one").symlink_to("two")
    (project / "two").symlink_to("one")
    (project / "self").symlink_to("self")
    (project / "lib" / "up").symlink_to("..")
    with opened(pack(str(project))) as archive:
        links = {entry.name: entry.linkname for entry in archive if entry.issym()}
    assert links == {"one": "two", "two": "one", "self": "self", "lib/up": ".."}
    with pytest.raises(UsageError, match=r"There is no script 'self'"):
        script_inside("self", str(project))


def test_too_much_is_told_with_the_largest_files_and_the_way_out(project: Path) -> None:
    noise = random.Random(0).randbytes(LARGEST_BYTES + 2**20)
    (project / "weights.bin").write_bytes(noise)
    (project / "lib" / "table.bin").write_bytes(noise[:2048])
    with pytest.raises(UsageError) as refused:
        pack(str(project))
    assert "4 files in" in refused.value.message
    assert "9.0 MiB when packed" in refused.value.message
    assert refused.value.message.endswith("are weights.bin (9.0 MiB), lib/table.bin (2.0 KiB), train.py (15 B).")
    for way_out in (".ddpignore", "--code-claim CLAIM:PATH", "submit --build"):
        assert way_out in refused.value.hint
    (project / ".ddpignore").write_text("*.bin\n")
    assert pack(str(project)).files == 3


def test_what_is_hopeless_is_not_even_packed(project: Path) -> None:
    with (project / "sparse.bin").open("wb") as file:
        file.truncate(MAX_UNPACKED_BYTES + 1)
    with pytest.raises(UsageError, match=r"at most 8\.0 MiB packed can travel with a job; the largest are sparse\.bin"):
        pack(str(project))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("nowhere", "'.*nowhere' does not exist"), ("project/train.py", "not a directory"), ("empty", "sends no files")],
)
def test_what_is_no_directory_of_code_is_refused(project: Path, tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=sentence):
        pack(str(tmp_path / name))


def test_a_script_is_found_from_here_and_from_the_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)
    assert script_inside("project/train.py", "project") == "train.py"
    assert script_inside("train.py", "project") == "train.py"
    assert script_inside("lib/net.py", "project") == "lib/net.py"
    Path("other.py").write_text("")
    with pytest.raises(UsageError, match=r"There is no script 'other\.py' in the code 'project'"):
        script_inside("other.py", "project")
