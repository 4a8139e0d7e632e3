import json
import threading
from collections.abc import Collection
from typing import Any

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api, iter_pages
from kubectl_ddp.backends.cluster.http.api_errors import Expired
from kubectl_ddp.backends.cluster.read.jobs import strip_pod
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.observe.scrape import ScrapeLimit, scrape_all
from tests.support import kube_objects
from tests.support.api_server import PODS, Answer, ApiServer, status
from tests.support.scripted_backend import ScriptedBackend
from tests.unit.kubectl_ddp.backends.cluster.test_cluster_backend import put_job


def page(token: str, *items: str) -> bytes:
    """Encode a page as the API server does: without spaces, the metadata before the items."""
    metadata = {"resourceVersion": "7", **({"continue": token} if token else {})}
    listed = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": list(items)}
    return json.dumps(listed, separators=(",", ":")).encode()


def test_the_next_page_is_asked_for_before_the_last_one_is_done_with() -> None:
    requests = threading.Event()

    def fetch(token: str) -> bytes:
        if token:
            requests.set()
        return page("" if token else "t==", token)

    for number, found in enumerate(iter_pages(fetch)):
        assert requests.wait(20), "while we still hold the first page"
        assert found["items"] == [["", "t=="][number]]


def test_a_record_in_an_object_of_an_objects_own_spoils_no_page() -> None:
    pasted = {"labels": {}, "managedFields": [{"manager": "kubectl"}]}
    template = {"metadata": pasted, "spec": {"containers": [{"args": ["x"], "name": "y"}]}}
    job = {"metadata": {**pasted, "name": "digits"}, "spec": {"template": template}}
    listed = {"apiVersion": "kubeflow.org/v1", "items": [job], "kind": "PyTorchJobList", "metadata": {}}
    body = json.dumps(listed, separators=(",", ":")).encode()
    assert list(iter_pages(lambda _: body)) == [listed]


def test_a_page_whose_token_stands_last_is_followed_all_the_same() -> None:
    there = {"": b'{"items": ["a"], "metadata": {"continue": "t"}}', "t": b'{"items": ["b"], "metadata": {}}'}
    assert [found["items"] for found in iter_pages(there.__getitem__)] == [["a"], ["b"]]


def test_what_the_next_page_is_refused_with_is_raised_where_it_is_wanted() -> None:
    def fetch(token: str) -> bytes:
        if token:
            raise Unreachable("gone")
        return page("t")

    found = iter_pages(fetch)
    next(found)
    with pytest.raises(Unreachable, match="gone"):
        next(found)


def test_a_server_that_forgets_every_page_is_asked_for_all_and_then_given_up(server: ApiServer, api: Api) -> None:
    removed = Answer(410, status(410, "Expired", "continue token too old"))
    server.next(f"GET {PODS}", removed)
    api.items(PODS)
    assert [request.query.get("limit") for request in server.requests] == ["500", None]
    server.next(f"GET {PODS}", removed, removed)
    with pytest.raises(Expired, match="has expired"):
        api.items(PODS)


def test_a_list_may_be_packed_and_what_is_one_object_or_goes_on_is_not(server: ApiServer, api: Api) -> None:
    server.put(f"{PODS}/a", {})
    api.items(PODS)
    api.get(f"{PODS}/a")
    api.stream(PODS, silence_seconds=20, watch="true", resourceVersion="1").close()
    listed, *others = [request.headers.get("Accept-Encoding", "") for request in server.requests]
    assert listed == "gzip"
    assert len(others) == 2
    assert "gzip" not in "".join(others)


@pytest.mark.parametrize("body", ["<html>Please log in</html>", "[]", '"ok"', ""])
def test_what_answers_in_another_tongue_is_no_api_server(server: ApiServer, api: Api, body: str) -> None:
    server.next(f"GET {PODS}", Answer(200, body))
    with pytest.raises(Unreachable, match="so it is not a Kubernetes API server"):
        api.items(PODS)
    server.next("GET /version", Answer(200, body))
    with pytest.raises(Unreachable, match="so it is not a Kubernetes API server"):
        api.get("/version")


def test_a_listed_pod_keeps_what_says_how_it_does_and_drops_the_rest() -> None:
    pod = kube_objects.pod(0)
    pod["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    pod["spec"]["volumes"] = [{"name": "code"}]
    pod["spec"]["containers"][0] |= {"env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 1}]}
    slim = strip_pod(pod)
    text = json.dumps(slim)
    assert not any(word in text for word in ("managedFields", "volumes", '"env"'))
    assert slim["status"]["containerStatuses"][0]["state"] == pod["status"]["containerStatuses"][0]["state"]
    assert slim["spec"]["containers"][0]["ports"] == [{"containerPort": 1}]


def test_a_status_without_events_asks_for_none(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server)
    backend.job("digits", events=False)
    assert not [path for path in server.asked("GET") if path.endswith("/events")]


def test_few_questions_go_to_the_first_pod_of_every_job_and_the_newest_job_first() -> None:
    requests: list[str] = []

    class Requests(ScriptedBackend):
        def metrics(self, pod: dict[str, Any], families: Collection[str] = ()) -> str:
            requests.append(pod["metadata"]["name"])
            return ""

    pods = {name: [kube_objects.pod(index, name=f"{name}-{index}") for index in range(3)] for name in ("old", "new")}
    jobs = [kube_objects.snapshot(kube_objects.job("Running"), *listed) for listed in pods.values()]
    scrape_all(Requests([]), jobs, most=ScrapeLimit(of_each=2, in_all=3))
    assert sorted(requests) == ["new-0", "new-1", "old-0"]
    requests.clear()
    scrape_all(Requests([]), jobs, most=ScrapeLimit(of_each=1, in_all=9))
    assert sorted(requests) == ["new-0", "old-0"]
