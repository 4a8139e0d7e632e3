"""The files that ``make docs`` generates are up to date, and no other file is in their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs import __main__ as writer


def test_generated_files_are_fresh() -> None:
    stale = [path for path, text in writer.files() if path.read_text(encoding="utf-8") != text]
    assert [*stale, *writer.stale_files()] == [], "run `make docs`"


def test_what_is_left_of_an_earlier_version_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, removed = tmp_path / "job.json", tmp_path / "gone.json"
    removed.write_text("{}")
    monkeypatch.setattr(writer, "DASHBOARDS", tmp_path)
    monkeypatch.setattr(writer, "files", lambda: [(stored, "{}")])
    monkeypatch.setattr(writer, "EXAMPLES", tmp_path)
    monkeypatch.setattr(writer, "FABRICS", tmp_path)
    writer.main()
    assert [*tmp_path.iterdir()] == [stored]
