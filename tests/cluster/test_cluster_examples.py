"""Every example that states no needs runs on a cluster as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines import ENGINES
from tests.cluster.live_cluster import Namespace, until
from tests.support.examples import RUN_ANYWHERE
from tools.docs.examples import targets

# Two jobs of two such pods would each hold a node, and wait for the other's.
pytestmark = pytest.mark.xdist_group("one core each")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("job_file", RUN_ANYWHERE, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(space: Namespace, job_file: Path) -> None:
    engine = next(iter(targets(job_file)))
    try:
        space.api.get(f"/apis/{ENGINES[engine].api_version}")
    except NotServed:
        pytest.skip(f"This cluster does not serve what the engine {engine} needs.")
    done = space.ddp("submit", "-f", str(job_file), "--image", space.image, "--wait", "--timeout", "8m", seconds=500)
    name = job_file.name.partition(".")[0]
    assert done.code == 0, done.err + space.ddp("status", name).out + space.ddp("logs", name).out
    item = space.ddp("list", name, "-o", "json").ok().json
    assert item["state"] == "Succeeded"
    space.ddp("delete", name, "--yes").ok()
    until("nothing left", lambda: not space.left())
