"""A release has one version, wherever it is written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.release import artifacts, versions
from tools.release.errors import CannotRelease, run_program
from tools.release.project import ROOT, version


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that name a version, and a chart."""
    for name in {place.path for place in versions.PLACES}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    chart = tmp_path / "charts" / "one" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text(f'name: one\nversion: {version()}\nappVersion: "{version()}"\n')
    return tmp_path


def test_this_tree_agrees_with_itself() -> None:
    assert list(versions.find_version_mismatches()) == []
    assert list(versions.check_release_tag()) == []


@pytest.mark.parametrize("path", [*sorted({place.path for place in versions.PLACES}), "charts/one/Chart.yaml"])
def test_every_place_that_says_another_version_is_named(tree: Path, path: str) -> None:
    assert list(versions.find_version_mismatches(tree)) == []
    (tree / path).write_text((tree / path).read_text().replace(version(), "9.9.9"))
    found = list(versions.find_version_mismatches(tree))
    assert found
    assert all(f"{path} says 9.9.9, and pyproject.toml {version()}" in line for line in found)


def test_a_place_that_says_nothing_is_named(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n")
    assert ["CHANGELOG.md names no version" in line for line in versions.find_version_mismatches(tree)] == [True]


def git(tree: Path, *commands: tuple[str, ...]) -> None:
    """Run git in the tree, once for each command."""
    program = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(tree))
    for words in commands:
        subprocess.run([*program, *words], check=True, capture_output=True)


def test_a_tagged_commit_needs_its_own_version_and_a_date(tree: Path) -> None:
    git(tree, ("init", "-q"), ("add", "-A"), ("commit", "-qm", "x"))
    assert list(versions.check_release_tag(tree)) == []
    git(tree, ("tag", "v9.9.9"))
    other, date = versions.check_release_tag(tree)
    assert "tagged v9.9.9" in other
    assert f"'## {version()} - YEAR-MONTH-DAY'" in date


def test_a_tagged_commit_needs_a_base_image_that_a_digest_names(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_IMAGE", raising=False)
    git(tree, ("init", "-q"), ("add", "-A"), ("commit", "-qm", "x"))
    assert list(versions.check_image_digest(tree)) == []
    git(tree, ("tag", f"v{version()}"))
    pinned = f"python:3.11-slim@sha256:{'0' * 64}"
    for base in ("", "python:3.11-slim", pinned[:-1], f"{pinned} more"):
        monkeypatch.setenv("PYTHON_IMAGE", base)
        [text] = versions.check_image_digest(tree)
        assert f"'{base}'" in text
    monkeypatch.setenv("PYTHON_IMAGE", pinned)
    assert list(versions.check_image_digest(tree)) == []


def test_the_time_of_a_release_is_its_commit_s_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert artifacts.commit_time() == int(run_program("git", "log", "-1", "--format=%ct", cwd=ROOT))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert artifacts.commit_time() == 12
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(CannotRelease, match="'yesterday', and should be whole seconds"):
        artifacts.commit_time()
