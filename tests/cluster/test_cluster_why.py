"""``why`` names the right cause first, for failures staged in parallel on a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.cli.group import root
from tests.cluster.live_cluster import Json, Namespace, namespace, until
from tests.cluster.staged_failures import STAGES, Staging, staged

pytestmark = [pytest.mark.xdist_group("why"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stages(api: Api, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staging]:
    with namespace(api, image, tmp_path_factory.mktemp("why")) as space, staged(space) as staging:
        yield staging


def diagnosis(space: Namespace, name: str) -> Json:
    done = CliRunner().invoke(root(), ["why", "-n", space.name, name, "-o", "json"])
    assert done.stdout, (done.output, done.exception)
    document: Json = json.loads(done.stdout)
    assert done.exit_code == document["exitCode"]
    return document


@pytest.mark.parametrize("name", STAGES)
def test_the_right_cause_is_named_first(stages: Staging, name: str) -> None:
    stage = STAGES[name]
    if not stages.can(stage):
        pytest.skip("This cluster lacks the engine or the queues of the stage.")
    answer: Json = {}

    def is_right() -> bool:
        answer.update(diagnosis(stages.space, name))
        first = answer["findings"][0] if answer["findings"] else {}
        return first.get("subject") == stage.cause and stage.says in json.dumps(first, ensure_ascii=False)

    try:
        until("the right answer", is_right, seconds=200)
    except AssertionError as error:
        raise AssertionError(json.dumps(answer, indent=1)) from error
    assert answer["exitCode"] == stage.code, json.dumps(answer, indent=1)
    assert answer["findings"][0]["hint"]


def test_the_rank_that_the_others_wait_for_is_named_through_the_api_server(stages: Staging) -> None:
    answer: Json = {}

    def is_named() -> bool:
        answer.update(json.loads(stages.space.ddp("hang", "hang", "-o", "json").out))
        return bool(answer["culprits"])

    until("the name of the rank", is_named, seconds=100)
    (culprit,) = answer["culprits"]
    assert (culprit["rank"], culprit["pod"], culprit["stackFrom"]) == (1, "hang-worker-0", "python")
    assert "did not enter all_reduce #61" in culprit["sentence"]
    assert "time.sleep(3600)" in culprit["stack"]
    assert [rank["sequence"] for rank in answer["ranks"]] == [61, 60]


def test_who_may_see_little_is_told_what_could_not_be_looked_at(stages: Staging) -> None:
    space = stages.space
    kubeconfig = str(space.kubeconfig_of_nobody())
    rules = [
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    group = "rbac.authorization.k8s.io"
    space.api.create(space.path(f"{group}/v1", "roles"), {"metadata": {"name": "little"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "nobody", "namespace": space.name}
    bound = {"roleRef": {"apiGroup": group, "kind": "Role", "name": "little"}, "subjects": [subject]}
    space.api.create(space.path(f"{group}/v1", "rolebindings"), {"metadata": {"name": "little"}, **bound})
    until("the binding", lambda: space.ddp("status", "gpus", "--kubeconfig", kubeconfig).code == 0)
    done = space.ddp("why", "gpus", "--kubeconfig", kubeconfig)
    assert done.code == 13, done.err
    assert re.search(r"^ERROR +unschedulable +Pod gpus-worker-0 fits no node", done.out, re.MULTILINE)
    unseen = [line for line in done.err.splitlines() if line.startswith("Not looked at: ")]
    assert any("list nodes" in line for line in unseen)
    assert any(f"list events in namespace '{space.name}'" in line for line in unseen)
