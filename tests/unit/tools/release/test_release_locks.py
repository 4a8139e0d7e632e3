"""Installed packages are pinned with digests, agree in all files, and are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.release import locks
from tools.release.project import LOCKS, ROOT, normalize_name

FILES = sorted(LOCKS.glob("*.txt"))
CONSTRAINTS = locks.pinned_versions((ROOT / "constraints.txt").read_text())
APART = {lock.path for lock in locks.ALL if lock.is_apart}
FIRST_LINE = re.compile(r"[a-z0-9-]+==\S+( ; .+)? \\")
DIGEST_LINE = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_package_has_a_version_and_digests_and_there_is_nothing_else(path: Path) -> None:
    comment, *lines = path.read_text().splitlines()
    assert comment.startswith("# ")
    names = {normalize_name(line) for line in lines if not DIGEST_LINE.fullmatch(line)}  # twice where Pythons differ
    assert names == locks.pinned_versions(path.read_text()).keys()
    assert [line for line in lines if not (FIRST_LINE.fullmatch(line) or DIGEST_LINE.fullmatch(line))] == []
    # A first line ends with a backslash, so a digest follows it.
    assert not lines[-1].endswith("\\")


@pytest.mark.parametrize("lock", locks.ALL, ids=lambda lock: lock.name)
def test_a_lock_has_what_is_asked_for_in_a_version_that_will_do(lock: locks.Lock) -> None:
    pinned = locks.pinned_versions(lock.path.read_text())
    for line in lock.requirements():
        wanted = Requirement(line)
        if lock.without_cuda and wanted.name == "torch":
            assert "torch" not in pinned
        else:
            assert wanted.specifier.contains(pinned[normalize_name(line)]), f"{line}: run `make lock`"


@pytest.mark.parametrize("path", [path for path in FILES if path not in APART], ids=lambda path: path.name)
def test_a_lock_and_the_constraints_that_developers_have_agree(path: Path) -> None:
    pinned = {name: version.removesuffix("+cpu") for name, version in locks.pinned_versions(path.read_text()).items()}
    assert {name: CONSTRAINTS.get(name, version) for name, version in pinned.items()} == pinned, "run `make lock`"


def test_the_image_installs_nothing_that_has_no_digest() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = [line for line in re.findall(r"pip (?:--python \S+ )?install ([^\n]*)", text) if "--help" not in line]
    assert len(installs) == 9
    own = [line for line in installs if "--require-hashes" not in line]
    assert [line.split("&&")[0].split() for line in own] == [["--no-deps", "--no-cache-dir", "/dist/*.whl"]] * 2
    copied = re.findall(r"^COPY (locks/\S+)", text, re.MULTILINE)
    assert set(FILES) - {ROOT / path for path in copied} == {
        LOCKS / f"{name}.txt" for name in ("release", "scan", "site")
    }
    assert {ROOT / path for path in copied} <= set(FILES)
