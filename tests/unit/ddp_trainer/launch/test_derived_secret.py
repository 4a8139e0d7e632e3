"""The secret of a run, derived from the key of its namespace: other runs have other secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.launch.host.secret_file import main
from ddp_trainer.net.run_secret import BadSecret, read_run_secret


def derive(folder: Path, run_id: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "key").write_text("0123456789abcdef" * 4)
    monkeypatch.setenv(Env.RUN_ID, run_id)
    assert main([f"--key={folder}/key", f"--secret-file={folder}/{run_id}"]) == Exit.SUCCESS
    return folder / run_id


def test_pods_of_one_run_agree_and_those_of_another_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = derive(tmp_path, "run-1", monkeypatch)
    text = first.read_text()
    again, other = derive(tmp_path, "run-1", monkeypatch), derive(tmp_path, "run-2", monkeypatch)
    assert again.read_text() == text
    assert read_run_secret(str(first), "run-1").key("store") != read_run_secret(str(other), "run-2").key("store")
    with pytest.raises(BadSecret, match="of another run"):
        read_run_secret(str(other), "run-1")


def test_a_missing_key_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(Env.RUN_ID, "run-1")
    assert main([f"--key={tmp_path}/gone", f"--secret-file={tmp_path}/file"]) == Exit.USAGE
    assert str(tmp_path / "gone") in capsys.readouterr().err
