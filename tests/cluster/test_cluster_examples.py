"""Examples run on a cluster as they are: a script that spawns its ranks, and a strategy of its own.

The documents submit the others, or they differ in options of the trainer alone, which tests/local runs.
"""

from __future__ import annotations

import pytest

from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines import ENGINES
from tests.cluster.live_cluster import Namespace, until
from tests.support.examples import EXAMPLES
from tools.docs.examples import targets

# Two jobs of two such pods would each hold a node, and wait for the other's.
pytestmark = pytest.mark.xdist_group("one core each")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["spawned", "asynchronous"])
def test_an_example_runs_as_it_is(space: Namespace, name: str) -> None:
    job_file = EXAMPLES / f"{name}.ddp.yaml"
    engine = next(iter(targets(job_file)))
    try:
        space.api.get(f"/apis/{ENGINES[engine].api_version}")
    except NotServed:
        pytest.skip(f"This cluster does not serve what the engine {engine} needs.")
    done = space.ddp("submit", "-f", str(job_file), "--image", space.image, "--wait", "--timeout", "8m", seconds=500)
    assert done.code == 0, done.err + space.ddp("status", name).out + space.ddp("logs", name).out
    item = space.ddp("list", name, "-o", "json").ok().json
    assert item["state"] == "Succeeded"
    space.ddp("delete", name, "--yes").ok()
    until("nothing left", lambda: not space.left())
