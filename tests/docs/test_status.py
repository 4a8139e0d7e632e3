"""docs/status.md: what shows a promise is there and runs on what the row names; no page about GPUs lacks a row."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from bench.gpu_checks.registry import CHECKS

ROOT = Path(__file__).resolve().parents[2]
STATUS = ROOT / "docs" / "status.md"
PAGE = STATUS.read_text()
KINDS = {"unit": "unit", "render": "unit", "local": "local", "docs": "local", "peers": "local", "cluster": "cluster"}
"""Folder of tests → what its tests run on."""
ON_A_CLUSTER = {"why", "list", "startup", "recovery-cluster", "controller"}
"""Measurements that need one."""
PROMISES = "Promises about GPUs"
OWN = {"docs/status.md", "CHANGELOG.md"}
WITHOUT_PROMISE = {f"docs/{name}.md" for name in ("comparison", "decisions", "fit", "glossary", "index", "status")}
ABOUT_GPUS = re.compile(r"\b(?:GPUs?|NCCL|CUDA|MIG|NVLink|RDMA|InfiniBand)\b")
PAGES = [ROOT / "README.md", ROOT / "docs/runbooks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
NESTED = sorted(path for folder in ("tutorials", "howto") for path in (ROOT / "docs" / folder).glob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def tables() -> dict[str, list[list[str]]]:
    """Section → rows of its table, without the table that is generated."""
    found: dict[str, list[list[str]]] = {}
    for section in PAGE.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        rows = [line for line in rest.splitlines() if line.startswith("| ") and not line.startswith("|---")]
        if rows and rows[0].startswith("| Promise "):
            found[title] = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1:]]
    return found


ROWS = [pytest.param(row, id=row[0]) for rows in tables().values() for row in rows]


def shown_by(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[3])


def kind_of(shown: str) -> str:
    """Hardware or software that a test or a measurement runs on."""
    if shown.startswith("bench "):
        return "cluster" if shown.removeprefix("bench ") in ON_A_CLUSTER else "local"
    return KINDS[shown.split("/")[1]]


def exists(shown: str) -> bool:
    """Return True if the measurement exists, or the file has a test."""
    if shown.startswith("bench "):
        return (ROOT / "bench" / "measurements" / f"{shown.removeprefix('bench ').replace('-', '_')}.py").is_file()
    path = ROOT / shown
    return path.is_file() and re.search(r"def test_|\.TestCase$", path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("row", ROWS)
def test_what_shows_a_promise_is_there(row: list[str]) -> None:
    assert [shown for shown in shown_by(row) if not exists(shown)] == []


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_its_tests_run_on(row: list[str]) -> None:
    kinds = {kind_of(shown) for shown in shown_by(row)}
    assert {word.strip() for word in row[2].split(",")} == (kinds or {"never"})


@pytest.mark.parametrize("row", tables()[PROMISES], ids=lambda row: row[0])
def test_what_is_said_of_gpus_is_a_check_of_bench_gpu_or_never(row: list[str]) -> None:
    assert len(row) == 6
    letters = {check.letter for check in CHECKS}
    assert row[4] == "never" or {letter.strip() for letter in row[4].split(",")} <= letters
    assert row[5] == "never"


def test_every_check_of_bench_gpu_is_for_a_promise() -> None:
    named = {letter.strip() for row in tables()[PROMISES] for letter in row[4].split(",")}
    assert [check.title for check in CHECKS if check.letter not in named] == []


def pages_of(rows: list[list[str]]) -> set[Path]:
    return {(STATUS.parent / target).resolve() for row in rows for target in LINK.findall(row[1])}


@pytest.mark.parametrize("page", [*PAGES, *NESTED], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_that_speaks_of_gpus_has_a_row_and_links_to_it(page: Path) -> None:
    text = page.read_text()
    if str(page.relative_to(ROOT)) in OWN or not ABOUT_GPUS.search(text):
        return
    if page not in NESTED and str(page.relative_to(ROOT)) not in WITHOUT_PROMISE:
        assert page in pages_of(tables()[PROMISES])
    assert STATUS in {(page.parent / target).resolve() for target in LINK.findall(text) if "://" not in target}


def test_every_page_has_a_row() -> None:
    missing = {*PAGES} - pages_of([row for rows in tables().values() for row in rows])
    assert {str(page.relative_to(ROOT)) for page in missing} == WITHOUT_PROMISE


def test_the_figures_of_the_readme_say_that_they_are_gloos() -> None:
    section = (ROOT / "README.md").read_text().partition("## What it does with faults\n")[2].partition("\n## ")[0]
    [caption] = [block for block, after in itertools.pairwise(section.split("\n\n")) if after.startswith("|")]
    assert "gloo" in caption
    assert "not on GPUs" in caption
