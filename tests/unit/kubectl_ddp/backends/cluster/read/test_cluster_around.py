"""Objects around a job: missing rights are reported, and a kind that is not served has no objects."""

from __future__ import annotations

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.kube.objects import RelatedKind
from tests.support import kube_objects
from tests.support.api_server import GROUPS, Answer, ApiServer, status

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
CORE = {**GROUPS["/api/v1"], "Node": "nodes", "PersistentVolumeClaim": "persistentvolumeclaims"}
pytestmark = pytest.mark.api_groups({**GROUPS, "/api/v1": CORE, KUEUE: {"Workload": "workloads"}})


def test_each_kind_has_its_objects_and_one_that_is_not_served_none(server: ApiServer, backend: ClusterBackend) -> None:
    server.put("/api/v1/namespaces/team/persistentvolumeclaims/data", {})
    found = backend.related_objects(
        kube_objects.job(), [RelatedKind.CLAIMS, RelatedKind.LOCAL_QUEUES, RelatedKind.EVENTS]
    )
    assert [item["metadata"]["name"] for item in found.of(RelatedKind.CLAIMS)] == ["data"]
    assert (found.was_read(RelatedKind.LOCAL_QUEUES), found.of(RelatedKind.LOCAL_QUEUES)) == (True, ())
    assert (found.was_read(RelatedKind.NODES), found.unseen) == (False, ())


def test_what_may_not_be_read_is_named_and_raises_nothing(server: ApiServer, backend: ClusterBackend) -> None:
    server.next("GET /api/v1/nodes", Answer(403, status(403, "Forbidden", "no nodes for you")))
    found = backend.related_objects(kube_objects.job(), [RelatedKind.NODES, RelatedKind.EVENTS])
    assert (found.was_read(RelatedKind.NODES), found.was_read(RelatedKind.EVENTS)) == (False, True)
    assert found.unseen == ("The API server does not let context 'test' list nodes: no nodes for you.",)


def test_workloads_of_the_namespace_do_where_all_may_not_be_read(server: ApiServer, backend: ClusterBackend) -> None:
    server.put(f"{KUEUE}/namespaces/team/workloads/mine", {})
    server.next(f"GET {KUEUE}/workloads", Answer(403, status(403, "Forbidden", "not all")))
    found = backend.related_objects(kube_objects.job(), [RelatedKind.WORKLOADS])
    assert [item["metadata"]["name"] for item in found.of(RelatedKind.WORKLOADS)] == ["mine"]
    assert len(found.unseen) == 1


def test_an_annotation_is_set_on_this_job_and_leaves_the_others(server: ApiServer, backend: ClusterBackend) -> None:
    path = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits"
    metadata = {"labels": {"ddp.dev/job": "digits"}, "annotations": {"kept": "x"}, "creationTimestamp": "t"}
    made = server.put(path, kube_objects.job(metadata=metadata))
    backend.annotate(made, {"ddp.dev/first-error": "{}"})
    assert server.objects[path]["metadata"]["annotations"] == {"kept": "x", "ddp.dev/first-error": "{}"}
