"""Directories of a run, and their errors."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.host.run_dirs import prepare_run_dirs
from ddp_trainer.launch.protocol.console import LaunchError


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ: dict[str, str] = {Env.RUN_DIR: str(tmp_path / "file")}
    with pytest.raises(LaunchError, match="file"), prepare_run_dirs(parse(["a.py"], {}), environ, 1, print):
        pass


def test_an_error_of_the_launcher_that_uses_the_folders_is_not_one_of_them(tmp_path: Path) -> None:
    environ: dict[str, str] = {Env.RUN_DIR: str(tmp_path)}
    with pytest.raises(OSError, match="open files"), prepare_run_dirs(parse(["a.py"], {}), environ, 1, print):
        raise OSError(errno.EMFILE, "Too many open files")
