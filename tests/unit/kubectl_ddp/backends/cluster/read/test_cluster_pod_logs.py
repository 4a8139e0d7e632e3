import queue
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read import pod_output
from kubectl_ddp.backends.cluster.read.pod_output import PodLogs
from kubectl_ddp.errors import Forbidden, NotFound, Unreachable
from kubectl_ddp.util.concurrency import Stop
from tests.support import kube_objects
from tests.support.api_server import Answer, ApiServer, status

POD = "/api/v1/namespaces/team/pods/digits-worker-0"
LOG = f"GET {POD}/log"
FIRST = "2026-01-01T00:00:01.100000000Z a"
SECOND = "2026-01-01T00:00:01.200000000Z b"
TWIN = "2026-01-01T00:00:01.200000000Z c"
THIRD = "2026-01-01T00:00:02.000000000Z d"


def put_pod(server: ApiServer, state: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    pod = kube_objects.pod(0, state, **fields)
    return server.put(POD, pod | {"metadata": {}})


@pytest.fixture
def logs(server: ApiServer, api: Api) -> PodLogs:
    """Logs of a running pod."""
    return PodLogs(api, POD, put_pod(server), sleep=lambda _: None)


def lines(*entries: str, cut: bool = False) -> Answer:
    return Answer(200, "".join(f"{entry}\n" for entry in entries), cut=cut)


def followed(server: ApiServer, logs: PodLogs, last: str, *rest: str, tail: int | None = None) -> list[str]:
    """The lines that following gives, of a container that ends after *last*, and *rest* of it."""
    found = []
    for line in logs.follow(tail=tail, since=None):
        found.append(line)
        if line == last:
            put_pod(server, kube_objects.terminated(0))
            server.next(LOG, lines(last, *rest))
    return found


def queries(server: ApiServer) -> list[Mapping[str, str]]:
    return [request.query for request in server.requests if request.path.endswith("/log")]


def test_the_lines_that_are_there_come_with_their_times(server: ApiServer, logs: PodLogs) -> None:
    server.next(LOG, lines(FIRST, SECOND, TWIN))
    assert list(logs.read(tail=None, since=None)) == [FIRST, SECOND, TWIN]
    assert queries(server) == [{"container": "pytorch", "timestamps": "true"}]


def test_how_many_lines_and_since_when_is_the_kubelets_business(server: ApiServer, logs: PodLogs) -> None:
    server.next(LOG, lines(FIRST))
    assert list(logs.read(tail=5, since="2026-01-01T00:00:01Z")) == [FIRST]
    (query,) = queries(server)
    assert (query["tailLines"], query["sinceTime"]) == ("5", "2026-01-01T00:00:01Z")


def test_a_container_that_has_not_started_wrote_nothing(server: ApiServer, api: Api) -> None:
    logs = PodLogs(api, POD, put_pod(server, kube_objects.waiting()))
    assert list(logs.read(tail=None, since=None)) == []


def test_a_pod_that_is_gone_or_was_replaced_took_its_lines_along(server: ApiServer, logs: PodLogs) -> None:
    server.drop(POD)
    with pytest.raises(NotFound, match="'digits-worker-0' is gone"):
        list(logs.read(tail=None, since=None))
    put_pod(server)
    with pytest.raises(NotFound, match="'digits-worker-0' is gone"):
        list(logs.read(tail=None, since=None))


def test_following_goes_on_after_a_broken_connection_and_gives_no_line_twice(server: ApiServer, logs: PodLogs) -> None:
    server.next(LOG, lines(FIRST, SECOND, cut=True), lines(FIRST, SECOND, TWIN, cut=True), lines(SECOND, TWIN, THIRD))
    assert followed(server, logs, THIRD, tail=3) == [FIRST, SECOND, TWIN, THIRD]
    requests = queries(server)
    assert [query.get("tailLines") for query in requests] == ["3", None, None, None]
    assert [query.get("sinceTime") for query in requests[1:]] == [line[:30] for line in (SECOND, TWIN, THIRD)]
    assert [query.get("follow") for query in requests] == ["true", "true", "true", None]


def test_following_reads_what_came_between_the_cut_and_the_end(server: ApiServer, logs: PodLogs) -> None:
    server.next(LOG, lines(FIRST, cut=True))
    assert followed(server, logs, FIRST, SECOND, THIRD) == [FIRST, SECOND, THIRD]


def test_an_error_of_the_kubelet_has_no_time_and_the_line_before_counts(server: ApiServer, logs: PodLogs) -> None:
    west = "2025-12-31T19:00:01.1-05:00 a"
    server.next(LOG, lines(west, "unable to retrieve container logs", cut=True), lines(west, SECOND))
    assert followed(server, logs, SECOND) == [FIRST, FIRST.replace(" a", " unable to retrieve container logs"), SECOND]
    assert [query.get("sinceTime") for query in queries(server)][1:] == [FIRST[:30], SECOND[:30]]


def test_following_a_silent_container_ends_when_another_thread_stops_it(server: ApiServer, api: Api) -> None:
    stop = Stop()
    server.next(LOG, Answer(200, f"{FIRST}\n", cut=True, silence=60))
    found: queue.Queue[str | None] = queue.Queue()

    def follow() -> None:
        for line in PodLogs(api, POD, put_pod(server), stop=stop).follow(tail=None, since=None):
            found.put(line)
        found.put(None)

    threading.Thread(target=follow, daemon=True).start()
    assert found.get(timeout=20) == FIRST
    stop.request()
    assert found.get(timeout=20) is None


def test_following_waits_until_the_container_starts(server: ApiServer, api: Api) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            put_pod(server, kube_objects.terminated(0))
            server.next(LOG, lines(FIRST))

    logs = PodLogs(api, POD, put_pod(server, kube_objects.waiting()), sleep=sleep)
    assert list(logs.follow(tail=None, since=None)) == [FIRST]
    assert len(pauses) == 3


def test_following_ends_when_the_pod_is_gone(server: ApiServer, logs: PodLogs) -> None:
    server.next(LOG, lines(FIRST))
    found = []
    for line in logs.follow(tail=None, since=None):
        found.append(line)
        server.drop(POD)
    assert found == [FIRST]


def test_following_gives_up_at_last(server: ApiServer, logs: PodLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_output, "MAX_UNAVAILABLE_SECONDS", 0.0)
    server.next(LOG, *[Answer(500, status(500, "InternalError", "the node is gone"))] * 3)
    with pytest.raises(Unreachable, match="the node is gone"):
        list(logs.follow(tail=None, since=None))


def test_a_silent_container_is_not_given_up(server: ApiServer, logs: PodLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_output, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(pod_output, "MAX_UNAVAILABLE_SECONDS", 0.0)
    silent = Answer(200, f"{FIRST}\n", cut=True, silence=60)
    server.next(LOG, silent, silent, silent, lines(FIRST, SECOND))
    assert followed(server, logs, SECOND) == [FIRST, SECOND]


def test_following_without_the_right_to_ends_with_the_reason(server: ApiServer, logs: PodLogs) -> None:
    server.next(LOG, Answer(403, status(403, "Forbidden", "no logs for you")))
    with pytest.raises(Forbidden, match="get pods/log 'digits-worker-0'"):
        list(logs.follow(tail=None, since=None))
