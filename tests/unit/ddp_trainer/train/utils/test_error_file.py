"""The error file of a failed worker."""

from __future__ import annotations

import json
from pathlib import Path

from ddp_trainer.train.utils.errors import write_error_file


def test_an_error_file_that_cannot_be_written_is_no_second_error(tmp_path: Path) -> None:
    write_error_file(Path("/proc/nowhere/error.json"), ValueError("x"))
    write_error_file(None, ValueError("x"))
    write_error_file(tmp_path / "new" / "error.json", ValueError("x"))
    assert json.loads((tmp_path / "new" / "error.json").read_text())["message"]["message"] == "ValueError: x"
