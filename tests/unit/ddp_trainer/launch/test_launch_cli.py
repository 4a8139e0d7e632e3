"""Crash records of ``ddp-launch``, by its flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch import cli
from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.host.parent_link import LauncherRecord, LauncherRecordFile, ParentLink
from ddp_trainer.launch.launch_plan import make_plan


@pytest.mark.parametrize(
    ("flags", "is_recorded"),
    [
        (["--rdzv-backend=ddp", "--rdzv-endpoint=127.0.0.1:1"], True),
        (["--rdzv-backend=ddp", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-conf=is_host=1"], False),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1"], False),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=192.0.2.1:1"], True),
        (["--standalone"], False),
    ],
)
def test_crashes_are_recorded_for_a_store_elsewhere(tmp_path: Path, flags: list[str], is_recorded: bool) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    environ: dict[str, str] = {Env.RUN_DIR: str(tmp_path), Env.RUN_ID: "run", Env.SECRET_FILE: str(secret)}
    arguments = parse(["--nnodes=2", "--rdzv-id=run", *flags, "-m", "http"], environ)
    LauncherRecordFile(environ).write(LauncherRecord(run_id="run", exit_code=137))
    assert (
        cli._previous_launcher(make_plan(arguments, environ), environ, ParentLink(0)).crash is not None
    ) is is_recorded
