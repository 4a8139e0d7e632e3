"""Every example runs on this machine as it is, or is refused at once because of what its first line states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.client.submission import GPU_DRIVERS
from tests.support.examples import NEED_MORE, RUN_ANYWHERE
from tests.support.local_place import Place, a_place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path / "state", HOME=str(tmp_path), OMP_NUM_THREADS="1") as found:
        yield found


def typed(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("kubectl-ddp"))
    environ = {**place.environ, "KUBECONFIG": os.devnull}
    return subprocess.run([program, *words], env=environ, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job_file", RUN_ANYWHERE, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(place: Place, job_file: Path) -> None:
    done = typed(place, "submit", "-f", str(job_file), "--local", "--wait", "-o", "json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["state"] == "Succeeded"


@pytest.mark.skipif(any(path.exists() for path in GPU_DRIVERS), reason="this machine has GPUs")
@pytest.mark.parametrize("job_file", NEED_MORE, ids=lambda path: path.name)
def test_an_example_for_gpus_starts_nothing_on_a_machine_without(place: Place, job_file: Path) -> None:
    secret = {"AWS_SECRET_ACCESS_KEY": "none"}
    place.environ.update(secret)
    done = typed(place, "submit", "-f", str(job_file), "--local", "--wait")
    assert done.returncode == 4
    assert "GPU" in done.stderr
    assert place.jobs() == []
