"""``why`` names the cause of a failure in a running job in time; each failure is staged alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.live_cluster import Json, Namespace, until
from tests.cluster.staged_incidents import INCIDENTS
from tests.cluster.staging import Staging

pytestmark = [pytest.mark.xdist_group("why"), pytest.mark.timeout(300)]
STAGED_HERE = ("pod-deleted", "node-drained", "store-killed")
"""test_cluster_why and test_cluster_budget stage hangs, errors and signals; ``bench why`` measures all stages."""


@pytest.fixture
def staging(space: Namespace) -> Iterator[Staging]:
    made = Staging(space)
    yield made
    made.clean()


@pytest.mark.parametrize("name", STAGED_HERE)
def test_the_cause_is_named_first_while_it_matters(staging: Staging, name: str) -> None:
    stage = INCIDENTS[name]
    if not staging.can(stage):
        pytest.skip("This cluster lacks the engine of the stage.")
    answer: Json = {}

    def is_right() -> bool:
        done = staging.space.ddp("why", name, "-o", "json")
        answer.update(json.loads(done.out) if done.out else {"findings": [], "said": done.err})
        first = next(iter(answer["findings"]), {})
        return first.get("subject") == stage.cause and stage.says in json.dumps(first, ensure_ascii=False)

    with ThreadPoolExecutor(1) as pool:
        staged = pool.submit(staging.start, name, stage, staging.objects(name, stage))
        try:
            until("the right answer", is_right, seconds=200)
        except AssertionError as error:
            raise AssertionError(json.dumps(answer, indent=1)) from error
        staged.result()
    assert answer["exitCode"] == stage.code, json.dumps(answer, indent=1)
    assert answer["findings"][0]["hint"]
