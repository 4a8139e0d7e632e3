"""A worker names the file system that is full: a real one of 1 MiB, in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.launch.in_worker import bootstrap

FILL = "import os\nfile = open(os.environ['TARGET'], 'wb', buffering=0)\nwhile True: file.write(bytes(1 << 16))\n"


@pytest.mark.parametrize("target", ["full/model.pt", "full"])
def test_the_folder_or_the_open_file_without_room_is_part_of_the_message(tmp_path: Path, target: str) -> None:
    full, error_file, script = tmp_path / "full", tmp_path / "error.json", tmp_path / "fill.py"
    full.mkdir()
    script.write_text(FILL)
    command = [sys.executable, str(bootstrap.__file__), str(os.getpid()), "script", str(script)]
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    done = subprocess.run(
        [*mounted, 'mount -t tmpfs -o size=1m none "$1"; shift; exec "$@"', "sh", str(full), *command],
        env={
            **os.environ,
            "TARGET": str(full / "model.pt"),
            "TMPDIR": str(tmp_path / target) if target == "full" else str(tmp_path),
            "TORCHELASTIC_ERROR_FILE": str(error_file),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip("No small file system can be mounted.")
    message = json.loads(error_file.read_text())["message"]["message"]
    assert message == f"OSError: [Errno 28] No space left on device ({tmp_path / target} is full)"
