"""A directory of code, and a job made again from another, on this machine."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.support.local_place import Place, Typed

SCRIPT = """\
import os, pathlib
import lib.word
print(lib.word.WORD, os.environ["RANK"], pathlib.Path("data.txt").read_text(), pathlib.Path("left.log").exists())
pathlib.Path("written.txt").write_text("beside the script")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "lib").mkdir(parents=True)
    (root / "train.py").write_text(SCRIPT)
    (root / "lib" / "word.py").write_text("WORD = 'first'\n")
    (root / "data.txt").write_text("data")
    (root / "table.bin").write_bytes(random.Random(0).randbytes(1 << 20))  # more than one ConfigMap holds
    (root / "left.log").write_text("left behind")
    (root / ".gitignore").write_text("*.log\n")
    return root


def test_code_travels_as_it_was_and_a_clone_gets_the_same(typed: Typed, project: Path) -> None:
    words = ("submit", str(project / "train.py"), "--code", str(project), "--local", "--name", "one", "--follow")
    done = typed(*words)
    assert done.returncode == 0, done.stderr
    assert "[rank0] first 0 data False\n" in done.stdout
    assert "Code: 5 files, packed as " in done.stderr
    assert not (project / "written.txt").exists()

    (project / "lib" / "word.py").write_text("WORD = 'second'\n")
    cloned = typed("clone", "one", "--name", "two", "--nproc", "2", "--follow")
    assert cloned.returncode == 0, cloned.stderr
    lines = {line for line in cloned.stdout.splitlines() if "data False" in line}
    assert lines == {"[rank0] first 0 data False", "[rank1] first 1 data False"}
    changed = typed("clone", "one", "--name", "three", "--code", str(project), "--follow")
    assert "[rank0] second 0 data False\n" in changed.stdout
    assert "--name NEW" in typed.refused("clone", "one")

    assert "'kubectl-ddp clone one --name NEW' runs it once more" in typed.refused("restart", "one")
    seen = typed("prune", "--dry-run", "-o", "json")
    assert [(one["name"], one["deleted"]) for one in json.loads(seen.stdout)["items"]] == [
        ("one", False), ("two", False), ("three", False),
    ]  # fmt: skip
    assert typed("prune", "--older-than", "1h", "--yes").stdout == ""
    assert typed("prune").returncode == 2
    assert sorted(typed("prune", "--state", "succeeded", "--yes").stdout.splitlines()) == [
        f"job {name} deleted on this machine" for name in ("one", "three", "two")
    ]  # fmt: skip


def test_code_that_cannot_be_unpacked_fails_the_job_and_says_so(place: Place, typed: Typed) -> None:
    missing = {"name": "unpack", "command": [sys.executable, "-m", "tarfile", "--extract", "/nowhere.tar.gz", "."]}
    place.run("exit 0", replicas=1, bounds=None, pod={"initContainers": [missing]})
    assert typed("wait", "digits").returncode == 10
    assert "/nowhere.tar.gz" in typed("logs", "digits").stdout


def test_a_failed_job_is_restarted_as_a_new_run_with_its_checkpoints(typed: Typed, tmp_path: Path) -> None:
    script = tmp_path / "flaky.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "kept = pathlib.Path(os.environ['DDP_CHECKPOINT_DIR']) / 'kept'\n"
        "print('found' if kept.exists() else 'fresh')\n"
        "sys.exit(0 if kept.exists() else kept.write_text('x') and 3)\n"
    )
    failed = typed("submit", str(script), "--local", "--name", "flaky", "--max-restarts", "0", "--wait", "-o", "json")
    assert failed.returncode == 10
    before = json.loads(failed.stdout)["runId"]
    result = typed("restart", "flaky", "-o", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["kind"], document["action"]) == ("JobChange", "restarted")
    assert document["runId"] != before
    assert "it gets a new run, from its last checkpoint" in document["effect"]
    assert typed("wait", "flaky", "--timeout", "100s").returncode == 0
    assert "[rank0] found" in typed("logs", "flaky").stdout
    assert "fresh" not in typed("logs", "flaky").stdout
