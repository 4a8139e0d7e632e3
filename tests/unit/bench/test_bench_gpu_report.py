"""The table of docs/status.md: what of a report is kept, what is refused, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_checks import report
from bench.gpu_checks.report import BEGIN, END, InvalidReport, load_results, merge_reports, table_of, with_table

BAR = {"what": "step | over one by hand", "figure": 1.0123456, "bar": 1.02, "holds": True, "relation": "<="}
MACHINE = {"gpu": "NVIDIA H200", "driver": "580.159.04", "torch": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9"}


def check(letter: str, status: str = "passed", **more: Any) -> dict[str, Any]:
    empty = {"reason": "", "seconds": 1.0, "figures": {}, "bars": [BAR], "unsupported": {}, "details": {}}
    return {"check": letter, "title": "t", "status": status, **empty, **more}


def made(*checks: dict[str, Any], **more: Any) -> dict[str, Any]:
    frame = {"date": "2026-11-24", "commit": "abc", "device": "cuda", "is_small": False, "machine": MACHINE}
    return {**frame, "checks": list(checks), **more}


def row(table: str, letter: str) -> str:
    [line] = [line for line in table.splitlines() if line.startswith(f"| **{letter}** ")]
    return line


def test_a_check_that_ran_has_date_hardware_driver_versions_figure_and_bar() -> None:
    line = row(table_of(merge_reports({}, made(check("K")))), "K")
    cells = [cell.strip() for cell in line.replace("\\|", "/").split("|")[2:-1]]
    hardware, versions = ["NVIDIA H200", "580.159.04"], "torch 2.11.0+cu130, CUDA 13.0, NCCL 2.28.9"
    figures = [f"step / over one by hand: {figure}" for figure in ("1.012", "<= 1.02")]
    assert cells == ["passed", "2026-11-24", *hardware, versions, *figures]


def test_a_failure_and_what_was_left_out_stay_visible() -> None:
    found = check("F1", "failed", reason="weights *unlike*", unsupported={"shared memory": "NCCL is old"})
    line = row(table_of(merge_reports({}, made(found))), "F1")
    assert "failed: weights \\*unlike\\*<br>left out: shared memory (NCCL is old)" in line


def test_a_later_report_replaces_the_checks_that_it_ran_and_no_others() -> None:
    stored = merge_reports({}, made(check("A"), check("C")))
    later = made(check("A", "failed", reason="r"), check("C", "not run", reason="time"), date="2026-12-01")
    stored = merge_reports(stored, later)
    assert (stored["A"]["status"], stored["A"]["date"]) == ("failed", "2026-12-01")
    assert (stored["C"]["status"], stored["C"]["date"]) == ("passed", "2026-11-24")


@pytest.mark.parametrize(
    ("frame", "why"),
    [({"device": "cpu"}, "rehearsal"), ({"is_small": True}, "small sizes"), ({"commit": ""}, "DDP_BENCH_COMMIT")],
)
def test_a_report_that_shows_nothing_about_a_gpu_is_refused(frame: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidReport, match=why):
        merge_reports({}, made(check("A"), **frame))


@pytest.mark.parametrize("machine", [MACHINE, MACHINE | {"gpu": ""}])
def test_a_report_in_which_nothing_ran_changes_nothing(machine: dict[str, Any]) -> None:
    stored = merge_reports({}, made(check("A")))
    assert merge_reports(stored, made(check("A", "not run", reason="no GPU"), machine=machine)) == stored


def test_the_page_in_the_repository_is_in_step_with_what_is_kept() -> None:
    page = report.PAGE.read_text()
    assert with_table(page, load_results()) == page


def test_the_command_stores_a_report_and_refuses_one_of_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, stored, given = tmp_path / "status.md", tmp_path / "kept.json", tmp_path / "report.json"
    page.write_text(f"{BEGIN}\n{END}\n")
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "REPORT_FILE", stored)
    monkeypatch.setattr(report, "load_results", lambda: load_results(stored))
    given.write_text(json.dumps(made(check("A"))))
    assert report.main([str(given)]) == 0
    assert "NVIDIA H200" in page.read_text()
    before = page.read_text()
    given.write_text(json.dumps(made(check("A"), device="cpu")))
    assert report.main([str(given)]) == 2
    assert "shows nothing about GPUs" in capsys.readouterr().err
    given.write_text(json.dumps({}))
    assert report.main([str(given)]) == 2
    assert "is not a report of bench gpu: it lacks 'device'." in capsys.readouterr().err
    given.write_text(json.dumps(made(check("A", "not run", reason="no GPU"))))
    assert report.main([str(given)]) == 0
    assert "nothing new is stored" in capsys.readouterr().err
    assert page.read_text() == before
    assert list(json.loads(stored.read_text())) == ["A"]
