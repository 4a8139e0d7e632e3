"""Discovery of served kinds: one aggregated request, or one request per group to an older server."""

from functools import partial

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.resources import AGGREGATED, Discovery
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.render import render
from kubectl_ddp.util.concurrency import run_in_threads
from tests.support.api_server import GROUPS, Answer, ApiServer, Json, status
from tests.support.jobs import a_job


def aggregated(*, stale: str = "") -> Json:
    """Return the aggregated discovery of Kubernetes 1.30 for the groups of the server in memory."""
    items = []
    for path, kinds in GROUPS.items():
        _, root, group, *version = path.split("/")
        if root == "apis":
            resources = [{"resource": name, "responseKind": {"kind": kind}} for kind, name in kinds.items()]
            freshness = "Stale" if group == stale else "Current"
            report = {"version": version[0], "freshness": freshness, "resources": [] if group == stale else resources}
            items.append({"metadata": {"name": group}, "versions": [report]})
    return {"kind": "APIGroupDiscoveryList", "items": items}


def groups_asked(server: ApiServer) -> list[str]:
    return [path for path in server.asked("GET") if path.startswith("/api") and path.count("/") <= 3]


def test_a_whole_submission_asks_once_what_is_served(server: ApiServer, backend: ClusterBackend) -> None:
    server.next("GET /apis", Answer(200, aggregated()))
    assert ("kubeflow.org/v1", "PyTorchJob") in backend.facts().kinds
    backend.submit(render(a_job(), "run1"))
    assert groups_asked(server) == ["/apis"]
    [paths] = [request for request in server.requests if request.path == "/apis"]
    assert paths.headers["Accept"].startswith(AGGREGATED)


def test_an_older_server_is_asked_group_by_group(server: ApiServer, backend: ClusterBackend) -> None:
    server.next("GET /apis", Answer(200, {"kind": "APIGroupList", "groups": [{"name": "batch"}]}))
    backend.submit(render(a_job(), "run1"))
    assert groups_asked(server).count("/apis/kubeflow.org/v1") == 1
    assert "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits" in server.objects


def test_without_the_right_to_see_all_groups_the_needed_ones_are_read(
    server: ApiServer, backend: ClusterBackend
) -> None:
    server.next("GET /apis", Answer(403, status(403, "Forbidden", "no")))
    assert ("batch/v1", "Job") in backend.facts().kinds


def test_a_group_whose_own_server_is_away_is_asked_for_itself(server: ApiServer, backend: ClusterBackend) -> None:
    server.next("GET /apis", Answer(200, aggregated(stale="kubeflow.org")))
    assert ("kubeflow.org/v1", "PyTorchJob") in backend.facts().kinds
    assert groups_asked(server) == ["/apis", "/apis/kubeflow.org/v1"]


def test_a_server_of_other_kinds_that_is_away_holds_up_nobody(server: ApiServer, backend: ClusterBackend) -> None:
    report = aggregated()
    away = {"version": "v1beta1", "freshness": "Stale", "resources": []}
    report["items"].append({"metadata": {"name": "metrics.k8s.io"}, "versions": [away]})
    server.next("GET /apis", Answer(200, report))
    server.next("GET /apis/metrics.k8s.io/v1beta1", Answer(500, status(500, "InternalError", "nobody is there")))
    backend.submit(render(a_job(), "run1"))
    assert groups_asked(server) == ["/apis"]


@pytest.mark.parametrize("is_known", [True, False])
def test_of_a_needed_server_that_is_away_is_said_what_is_known_or_that_it_is_away(
    server: ApiServer, api: Api, *, is_known: bool
) -> None:
    report = aggregated(stale="" if is_known else "kubeflow.org")
    [group] = [item for item in report["items"] if item["metadata"]["name"] == "kubeflow.org"]
    group["versions"][0]["freshness"] = "Stale"
    server.next("GET /apis", Answer(200, report))
    server.next("GET /apis/kubeflow.org/v1", Answer(500, status(500, "InternalError", "nobody is there")))
    discovery = Discovery(api)
    if is_known:
        assert discovery.resource_for_kind("kubeflow.org/v1", "PyTorchJob") == "pytorchjobs"
    else:
        with pytest.raises(Unreachable):
            discovery.resource_for_kind("kubeflow.org/v1", "PyTorchJob")
        assert discovery.has("kubeflow.org", "pytorchjobs"), "it is asked again"


def test_what_has_subresources_alone_has_no_kind_and_harms_nobody(server: ApiServer, backend: ClusterBackend) -> None:
    report = aggregated()
    consoles = [{"resource": "virtualmachineinstances", "responseKind": None}, {"resource": "virtualmachines"}]
    versions = [{"version": "v1", "resources": consoles}]
    report["items"].append({"metadata": {"name": "subresources.kubevirt.io"}, "versions": versions})
    server.next("GET /apis", Answer(200, report))
    assert ("kubeflow.org/v1", "PyTorchJob") in backend.facts().kinds


def test_who_asks_while_another_asks_gets_the_whole_answer(server: ApiServer, api: Api) -> None:
    server.next("GET /apis", Answer(200, aggregated(stale="kubeflow.org")))
    discovery = Discovery(api)
    kinds = [("kubeflow.org/v1", "PyTorchJob"), ("batch/v1", "Job")] * 8
    assert None not in run_in_threads(*(partial(discovery.resource_for_kind, *kind) for kind in kinds))
    assert groups_asked(server) == ["/apis", "/apis/kubeflow.org/v1"]


def test_a_group_of_other_peoples_kinds_is_no_engine(server: ApiServer, backend: ClusterBackend) -> None:
    server.groups = {**GROUPS, "/apis/kubeflow.org/v1": {"Notebook": "notebooks"}}
    server.next("GET /version", Answer(200, {"gitVersion": "v1.36.0"}))
    there = {"name": "kubeflow.org", "preferredVersion": {"version": "v1"}}
    server.next("GET /apis", Answer(200, {"kind": "APIGroupList", "groups": [there]}))
    facts = backend.inspect_cluster()
    assert ("pytorchjob" in facts.engines, "job" in facts.engines) == (False, True)
    assert not [plural for _, plural in facts.served if plural == "pytorchjobs"]
