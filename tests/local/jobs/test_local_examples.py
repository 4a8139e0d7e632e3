"""Every example runs on this machine unchanged, or is refused because of the needs in its first line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubectl_ddp.client.submission import GPU_DRIVERS
from tests.support.examples import NEED_MORE, RUN_ANYWHERE
from tests.support.local_place import Place, Typed

TUTORIAL = (Path(__file__).parents[3] / "docs" / "tutorials" / "laptop-to-gpu-cluster.md").read_text()
NOT_IN_THE_TUTORIAL = [
    path for path in RUN_ANYWHERE if f"submit -f manifests/examples/{path.name} --local" not in TUTORIAL
]
"""Examples that tests/docs does not run already, as commands of the tutorial."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job_file", NOT_IN_THE_TUTORIAL, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(typed: Typed, job_file: Path) -> None:
    done = typed("submit", "-f", str(job_file), "--local", "--wait", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "Succeeded"


@pytest.mark.skipif(any(path.exists() for path in GPU_DRIVERS), reason="this machine has GPUs")
@pytest.mark.parametrize("job_file", NEED_MORE, ids=lambda path: path.name)
def test_an_example_for_gpus_starts_nothing_on_a_machine_without(typed: Typed, place: Place, job_file: Path) -> None:
    typed.environ["AWS_SECRET_ACCESS_KEY"] = "none"
    assert "GPU" in typed.refused("submit", "-f", str(job_file), "--local", "--wait", code=4)
    assert place.jobs() == []
