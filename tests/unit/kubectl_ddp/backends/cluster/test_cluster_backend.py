import base64
import copy
import queue
import threading
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import HISTORY_MARK, Label
from ddp_trainer.common.parallel_dims import LayoutRange
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.backends.cluster.read import pod_output, reflector
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import Forbidden, NotFound, Unreachable, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe import log_stream
from kubectl_ddp.render import render
from kubectl_ddp.util.concurrency import Stop
from kubectl_ddp.values.parsers import Egress
from kubectl_ddp.values.pod import Topology
from kubectl_ddp.values.program import Gang, QueueResize
from kubectl_ddp.values.quantity import NodeRange
from tests.support import kube_objects
from tests.support.api_server import EVENTS, JOBS, PODS, Answer, ApiServer, kubeconfig, status
from tests.support.jobs import a_job

DIGITS = f"{JOBS}/digits"
WORKER = f"{PODS}/digits-worker-0"


def put_job(server: ApiServer, *, run_id: str = "run1", name: str = "digits", **fields: Any) -> dict[str, Any]:
    job = kube_objects.job("Running", **fields)
    job["metadata"] = {"creationTimestamp": kube_objects.CREATED, "labels": {Label.JOB: name, Label.RUN_ID: run_id}}
    return server.put(f"{JOBS}/{name}", job)


def put_pod(server: ApiServer, index: int = 0, *, run_id: str = "run1", job: str = "digits") -> dict[str, Any]:
    pod = kube_objects.pod(index)
    labels = {Label.JOB: job, Label.ROLE: "worker", Label.RUN_ID: run_id}
    return server.put(f"{PODS}/{job}-worker-{index}", pod | {"metadata": {"labels": labels}})


def put_event(server: ApiServer, name: str, metadata: dict[str, Any], moment: str, reason: str = "") -> None:
    involved = {"uid": metadata["metadata"]["uid"], "name": metadata["metadata"]["name"], "kind": "Pod"}
    server.put(f"{EVENTS}/{name}", {"involvedObject": involved, "lastTimestamp": moment, "reason": reason})


def names(snapshot: Snapshot) -> list[str]:
    return [pod["metadata"]["name"] for pod in snapshot.pods]


def test_a_job_comes_with_its_pods_in_order_and_its_events_by_time(server: ApiServer, backend: ClusterBackend) -> None:
    job = put_job(server)
    for index in (10, 2, 0):
        pod = put_pod(server, index)
    put_event(server, "second", pod, "2026-01-02T00:00:02Z")
    put_event(server, "first", job, "2026-01-02T00:00:01Z")
    put_event(server, "foreign", put_pod(server, job="other"), "2026-01-02T00:00:00Z")
    found = backend.job("digits")
    assert (found.job["apiVersion"], found.job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert names(found) == ["digits-worker-0", "digits-worker-2", "digits-worker-10"]
    assert [event["metadata"]["name"] for event in found.events] == ["first", "second"]


def test_pods_of_the_run_before_that_still_end_are_not_this_jobs(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server, run_id="run2")
    put_pod(server, 0, run_id="run1")
    put_pod(server, 1, run_id="run2")
    assert names(backend.job("digits")) == ["digits-worker-1"]


def test_a_job_can_be_read_without_the_right_to_read_events(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server)
    server.next(f"GET {EVENTS}", Answer(403, status(403, "Forbidden", "no events")))
    assert backend.job("digits").events == ()


def test_a_list_names_the_kinds_that_may_not_be_listed(server: ApiServer, tmp_path: Path) -> None:
    messages: list[str] = []
    to = connect(kubeconfig=str(kubeconfig(tmp_path, server.url)))
    backend = ClusterBackend(connection=to, notice=messages.append)
    put_job(server)
    assert (len(backend.jobs()), messages) == (1, [])
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"
    server.next(f"GET {path}", Answer(403, status(403, "Forbidden", "no job sets for you")))
    assert len(backend.jobs()) == 1
    [warning] = messages
    assert "list jobsets.jobset.x-k8s.io in namespace 'team': no job sets for you" in warning


def test_our_jobs_of_one_namespace_or_of_all_are_listed_by_age(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server, name="b")
    put_job(server, name="a")
    put_pod(server, job="a")
    server.put(f"{JOBS}/foreign", {"metadata": {"labels": {}}})
    older = {"creationTimestamp": "2020-01-01T00:00:00Z", "labels": {Label.JOB: "c"}, "namespace": "other"}
    server.put(f"{JOBS.replace('team', 'other')}/c", put_job(server, name="a") | {"metadata": older})
    assert [one.job["metadata"]["name"] for one in backend.jobs()] == ["a", "b"]
    everywhere = backend.jobs(all_namespaces=True)
    assert [one.job["metadata"]["name"] for one in everywhere] == ["c", "a", "b"]
    assert [names(one) for one in everywhere] == [[], ["a-worker-0"], []]


def test_a_missing_job_is_said_to_be_missing_with_its_namespace(backend: ClusterBackend) -> None:
    for act in (backend.job, backend.delete, lambda name: next(backend.watch(name))):
        with pytest.raises(NotFound, match=r"Job 'digits' does not exist in namespace 'team' of context 'test'"):
            act("digits")


def test_a_pytorchjob_of_somebody_else_is_neither_shown_nor_deleted(server: ApiServer, backend: ClusterBackend) -> None:
    server.put(DIGITS, {"metadata": {"labels": {}}})
    with pytest.raises(NotFound, match=r"was not submitted by kubectl-ddp\. Use kubectl for it"):
        backend.delete("digits")
    assert DIGITS in server.objects


def test_deleting_takes_the_background_and_this_very_job(server: ApiServer, backend: ClusterBackend) -> None:
    job = put_job(server)
    backend.delete("digits")
    assert DIGITS not in server.objects
    [deleted] = [request for request in server.requests if request.method == "DELETE"]
    assert deleted.body == {"propagationPolicy": "Background", "preconditions": {"uid": job["metadata"]["uid"]}}


def test_scaling_sets_the_number_of_workers_and_nothing_else(server: ApiServer, backend: ClusterBackend) -> None:
    before = put_job(server, bounds=(1, 4), replicas=2)
    backend.scale("digits", 3)
    after = server.objects[DIGITS]["spec"]
    assert after["pytorchReplicaSpecs"]["Worker"].pop("replicas") == 3
    before["spec"]["pytorchReplicaSpecs"]["Worker"].pop("replicas")
    assert after == before["spec"]


@pytest.mark.parametrize(("bounds", "nodes", "text"), [
    ((1, 4), 5, r"cannot have 5 nodes: it was submitted for between 1 and 4 nodes"),
    ((2, 4), 1, r"between 2 and 4"),
    ((2, 2), 3, r"exactly 2 nodes\. Submit it again with other --nnodes"),
])  # fmt: skip
def test_a_job_is_not_scaled_past_what_its_launchers_were_told(
    server: ApiServer, backend: ClusterBackend, bounds: tuple[int, int], nodes: int, text: str
) -> None:
    put_job(server, bounds=bounds)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=text):
            backend.scale("digits", nodes, dry_run=dry_run)
    assert not server.asked("PATCH")


def test_a_dry_run_of_scaling_asks_for_nothing(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server, bounds=(1, 4))
    backend.scale("digits", 3, dry_run=True)
    assert not server.asked("PATCH")


def put_root(server: ApiServer, engine: Engine, **changes: Any) -> str:
    """Put a job of one to four nodes on the server, and return its path."""
    spec, kind = a_job(**{"engine": engine, "nnodes": NodeRange(1, 4)} | changes), ENGINES[engine]
    root = job_kinds.root_of(render(spec, "run1"))
    server.groups = {**server.groups, f"/apis/{kind.api_version}": {kind.kind: kind.plural}}
    path = f"/apis/{kind.api_version}/namespaces/team/{kind.plural}/digits"
    server.put(path, root)
    return path


def test_a_jobset_is_scaled_where_its_webhook_takes_the_change(server: ApiServer, backend: ClusterBackend) -> None:
    path = put_root(server, Engine.JOBSET)
    before = copy.deepcopy(server.objects[path]["spec"]["replicatedJobs"])
    backend.scale("digits", 3, dry_run=True)
    assert server.objects[path]["spec"]["replicatedJobs"] == before
    backend.scale("digits", 3)
    before[0]["template"]["spec"] |= {"parallelism": 3, "completions": 3}
    assert server.objects[path]["spec"]["replicatedJobs"] == before


@pytest.mark.parametrize(("engine", "cause", "sentence"), [
    (Engine.JOBSET, "spec.replicatedJobs: field is immutable", "gate ElasticJobSet of JobSet's controller is off"),
    (Engine.TRAINJOB, "spec.trainer: field is immutable", "Kubeflow Trainer does not let numNodes change"),
    (Engine.JOBSET, "spec.replicatedJobs: it is over", "it is over"),
])  # fmt: skip
def test_a_job_that_keeps_its_number_of_pods_is_refused_with_the_reason(
    server: ApiServer, backend: ClusterBackend, engine: Engine, cause: str, sentence: str
) -> None:
    path = put_root(server, engine)
    field, _, message = cause.partition(": ")
    refusal = Answer(422, status(422, "Invalid", cause, causes=[{"field": field, "message": message}]))
    server.next(f"PATCH {path}", refusal, refusal)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=sentence):
            backend.scale("digits", 3, dry_run=dry_run)
    assert job_kinds.desired_nodes(server.objects[path]) == 4
    assert not server.answers[f"PATCH {path}"]


@pytest.mark.parametrize("engine", [Engine.PYTORCHJOB, Engine.JOB])
def test_replicas_in_a_domain_are_not_scaled_apart(server: ApiServer, backend: ClusterBackend, engine: Engine) -> None:
    layout = {"nproc": 1, "parallel": LayoutRange.parse("replicate=1:2,shard=2")}
    place = {"queue": "lab", "gang": Gang.KUEUE, "topology": (Topology.parse("replica=rack"),)}
    put_root(server, engine, nnodes=NodeRange(2, 4), **layout, **place)
    for nodes in (2, 3):
        with pytest.raises(UsageError, match="is in a queue of Kueue's, which stops a job that is scaled"):
            backend.scale("digits", nodes)
    assert not server.asked("PATCH")


GATE = "kueue.x-k8s.io/elastic-job"


def put_resizable(server: ApiServer, *, has_feature: bool) -> str:
    """Put a job that Kueue may resize, as Kueue changes it with and without its feature gate; return its path."""
    resize = {"engine": Engine.JOB, "queue": "lab", "queue_resize": QueueResize.RUNNING, "nnodes": NodeRange(1, 3)}
    root = job_kinds.root_of(render(a_job(**resize), "run1"))
    if has_feature:
        root["spec"]["template"]["spec"]["schedulingGates"] = [{"name": GATE}]
    path = "/apis/batch/v1/namespaces/team/jobs/digits"
    server.put(path, root)
    return path


def test_a_job_in_a_queue_is_scaled_if_kueue_gates_its_pods(server: ApiServer, backend: ClusterBackend) -> None:
    path = put_resizable(server, has_feature=False)
    with pytest.raises(UsageError, match="whose feature gate ElasticJobsViaWorkloadSlices is off"):
        backend.scale("digits", 2)
    put_resizable(server, has_feature=True)
    backend.scale("digits", 2)
    assert server.objects[path]["spec"]["parallelism"] == server.objects[path]["spec"]["completions"] == 2


def test_resume_removes_the_earlier_slice_from_a_stopped_job(server: ApiServer, backend: ClusterBackend) -> None:
    path = put_resizable(server, has_feature=True)
    job = server.objects[path]
    job["spec"]["template"]["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": "first-slice", "mine": "stays"}
    owner = {"metadata": {"ownerReferences": [{"uid": job["metadata"]["uid"]}], "labels": {}}, "spec": {}}
    owner["metadata"]["labels"] = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    server.put("/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/slice", owner)
    backend.suspend("digits", suspended=False)
    assert server.objects[path]["spec"]["template"]["metadata"]["annotations"] == {"mine": "stays"}


def test_a_job_that_is_over_is_not_changed(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server)
    server.put(DIGITS, server.objects[DIGITS] | {"status": {"conditions": [kube_objects.condition("Succeeded")]}})
    with pytest.raises(UsageError, match="is over"):
        backend.scale("digits", 2)
    with pytest.raises(UsageError, match="is over"):
        backend.suspend("digits", suspended=False)


@pytest.mark.parametrize(("types", "wanted", "rendered"), [
    (["Ingress", "Egress"], Egress.OPEN, Egress.CLOSED),
    (["Ingress", "Egress"], Egress.UNRESTRICTED, Egress.UNRESTRICTED),
    (["Ingress"], Egress.OPEN, Egress.OPEN),
    (None, Egress.OPEN, Egress.OPEN),
])  # fmt: skip
def test_an_open_job_does_not_open_a_namespace_whose_egress_is_closed(
    server: ApiServer, backend: ClusterBackend, types: list[str] | None, wanted: Egress, rendered: Egress
) -> None:
    if types is not None:
        path = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies/ddp-default"
        server.put(path, {"spec": {"policyTypes": types}})
    assert backend.effective_egress(wanted) is rendered


def test_a_pods_metrics_come_through_the_api_servers_proxy(server: ApiServer, backend: ClusterBackend) -> None:
    pod = put_pod(server)
    path = f"{PODS}/digits-worker-0:9464/proxy/metrics"
    server.next(f"GET {path}", Answer(200, "ddp_step 3\n"), Answer(200, "ddp_step 4\n"))
    assert backend.metrics(pod) == "ddp_step 3\n"
    assert backend.metrics(pod, ["ddp_step"]) == "ddp_step 4\n"
    assert [request.query for request in server.requests[-2:]] == [{}, {"name[]": "ddp_step"}]


@pytest.mark.parametrize("answer", [
    Answer(503, status(503, "ServiceUnavailable", "error trying to reach service: dial tcp: connection refused")),
    Answer(500, "a sad trainer"),
    Answer(404, "not found"),
    Answer(200, "ddp_st", cut=True),
], ids=lambda answer: str(answer.status))  # fmt: skip
def test_a_pod_without_its_metrics_is_unreachable(server: ApiServer, backend: ClusterBackend, answer: Answer) -> None:
    pod = put_pod(server)
    server.next(f"GET {PODS}/digits-worker-0:9464/proxy/metrics", *[answer] * 9)
    with pytest.raises(Unreachable, match="Pod 'digits-worker-0' does not answer with its metrics"):
        backend.metrics(pod)


def test_the_right_to_read_metrics_may_be_missing(server: ApiServer, backend: ClusterBackend) -> None:
    pod = put_pod(server)
    refusal = Answer(403, status(403, "Forbidden", "cannot get resource pods/proxy"))
    server.next(f"GET {PODS}/digits-worker-0:9464/proxy/metrics", refusal)
    with pytest.raises(Forbidden, match=r"get pods/proxy 'digits-worker-0' in namespace 'team'"):
        backend.metrics(pod)


PACKED = f"{HISTORY_MARK}1/1 {base64.b64encode(zlib.compress(b'{}')).decode()}"


def test_what_a_running_pod_has_kept_comes_through_the_proxy(server: ApiServer, backend: ClusterBackend) -> None:
    pod = put_pod(server)
    server.next(f"GET {PODS}/digits-worker-0:9464/proxy/history", Answer(200, '{"version": 1}'))
    assert backend.metrics_history(pod) == '{"version": 1}'


@pytest.mark.parametrize("log", ["", f"2026-01-02T03:04:06Z {PACKED}\n"], ids=["nothing", "a history"])
def test_a_pod_that_serves_none_has_it_at_its_logs_end(server: ApiServer, backend: ClusterBackend, log: str) -> None:
    pod = put_pod(server)
    server.next(f"GET {PODS}/digits-worker-0:9464/proxy/history", *[Answer(404, "not found")] * 9)
    server.next(f"GET {WORKER}/log", Answer(200, log))
    assert backend.metrics_history(pod) == ("{}" if log else None)
    [query] = [request.query for request in server.requests if request.path == f"{WORKER}/log"]
    assert query["tailLines"] == "64"


def test_nobody_is_shown_the_lines_that_hold_a_history(server: ApiServer, backend: ClusterBackend) -> None:
    pod = put_pod(server)
    answer = Answer(200, f"2026-01-02T03:04:05Z step 1\n2026-01-02T03:04:06Z {PACKED}\n")
    server.next(f"GET {WORKER}/log", answer, answer)
    assert list(backend.logs(pod)) == ["step 1"]
    assert list(backend.logs(pod, timestamps=True)) == ["2026-01-02T03:04:05.000000000Z step 1"]


def test_lines_of_nodes_in_several_zones_come_by_time(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server)
    first = ("2026-01-01T22:00:01.000000001-05:00 [rank0] a", "2026-01-01T22:00:03-05:00 [rank0] d")
    second = ("2026-01-02T03:00:01.000000002Z [rank1] b", "2026-01-02T08:45:02.5+05:45 [rank1] c")
    for index, lines in enumerate((first, second)):
        put_pod(server, index)
        answer = Answer(200, "".join(f"{line}\n" for line in lines))
        server.next(f"GET {PODS}/digits-worker-{index}/log", answer, answer)
    lines = list(log_stream.read(backend, "digits", log_stream.rank_filter("all", None)))
    assert [line.message for line in lines] == ["a", "b", "c", "d"]
    late = log_stream.read(backend, "digits", log_stream.rank_filter("all", None), since=lines[1].time)
    assert [line.message for line in late] == ["c", "d"]


class Watcher:
    """A watch in a separate thread; reading a snapshot has a timeout."""

    def __init__(self, backend: ClusterBackend, reasons: Collection[str] | None = None) -> None:
        self.seen: queue.Queue[Snapshot | BaseException | None] = queue.Queue()
        self.stop = Stop()
        self._snapshots = backend.watch("digits", reasons=reasons, stop=self.stop)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for snapshot in self._snapshots:
                self.seen.put(snapshot)
            self.seen.put(None)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.seen.put(error)

    def until(self, wanted: Any) -> Snapshot:
        while True:
            found = self.seen.get(timeout=20)
            assert isinstance(found, Snapshot), f"the watch ended with {found!r}"
            if wanted(found):
                return found

    def end(self) -> BaseException | None:
        while isinstance(found := self.seen.get(timeout=20), Snapshot):
            pass
        return found


@pytest.fixture
def watcher(server: ApiServer, backend: ClusterBackend) -> Watcher:
    """A watch that has returned a job without pods."""
    put_job(server)
    found = Watcher(backend)
    found.until(lambda one: not one.pods)
    return found


def test_a_watch_shows_the_job_every_change_and_ends_with_the_job(server: ApiServer, watcher: Watcher) -> None:
    pod = put_pod(server)
    watcher.until(lambda one: names(one) == ["digits-worker-0"])
    put_event(server, "e", pod, "2026-01-02T00:00:02Z")
    watcher.until(lambda one: len(one.events) == 1)
    server.drop(WORKER)
    watcher.until(lambda one: not one.pods)
    server.put(DIGITS, server.objects[DIGITS] | {"status": {"conditions": [kube_objects.condition("Succeeded")]}})
    watcher.until(lambda one: one.job["status"]["conditions"][0]["type"] == "Succeeded")
    server.drop(DIGITS)
    assert watcher.end() is None


def test_a_watch_reads_the_events_that_its_caller_needs_alone(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server)
    pod = put_pod(server)
    Watcher(backend, ()).until(lambda one: one.pods)
    assert EVENTS not in server.asked("GET")
    put_event(server, "before", pod, "2026-01-02T00:00:01Z", "Pulling")
    put_event(server, "else", pod, "2026-01-02T00:00:01Z", "Scheduled")
    watcher = Watcher(backend, ("Pulling", "Pulled"))
    watcher.until(lambda one: len(one.events) == 1)
    put_event(server, "after", pod, "2026-01-02T00:00:02Z", "Pulled")
    seen = watcher.until(lambda one: len(one.events) == 2)
    assert [event["reason"] for event in seen.events] == ["Pulling", "Pulled"]
    paths = {one.query["fieldSelector"] for one in server.requests if one.path == EVENTS}
    assert paths == {f"involvedObject.kind=Pod,reason={reason}" for reason in ("Pulling", "Pulled")}


def test_an_object_that_is_no_longer_selected_is_dropped(server: ApiServer, watcher: Watcher) -> None:
    pod = put_pod(server)
    put_event(server, "e", pod, "2026-01-02T00:00:02Z")
    watcher.until(lambda one: len(one.events) == 1)
    put_event(server, "e", {"metadata": {**pod["metadata"], "name": "another"}}, "2026-01-02T00:00:03Z")
    watcher.until(lambda one: not one.events)
    watcher.stop.request()


def test_a_watch_goes_on_where_it_stood_when_its_connection_is_cut(server: ApiServer, watcher: Watcher) -> None:
    for index in range(3):
        server.cut_watches()
        put_pod(server, index)
        watcher.until(lambda one, count=index + 1: len(one.pods) == count)
    lists = [one for one in server.requests if one.path == PODS and "watch" not in one.query]
    assert len(lists) == 1, "by the watch; every later connection resumed"


def test_a_watch_reads_the_list_again_when_the_server_forgot(server: ApiServer, watcher: Watcher) -> None:
    put_pod(server, 0)
    watcher.until(lambda one: len(one.pods) == 1)
    server.next(f"GET {PODS}", Answer(410, status(410, "Expired", "too old resource version")))
    server.cut_watches()
    server.drop(WORKER)
    put_pod(server, 1)
    watcher.until(lambda one: names(one) == ["digits-worker-1"])


def test_a_watch_also_reads_the_list_again_at_a_streams_error(server: ApiServer, watcher: Watcher) -> None:
    job = server.objects[DIGITS]
    server.put(DIGITS, job | {"status": {"conditions": []}})
    watcher.until(lambda one: not one.job["status"]["conditions"])
    for _ in range(3):
        put_pod(server)
    server.forget()
    server.cut_watches()
    server.put(DIGITS, job)
    watcher.until(lambda one: bool(one.job["status"]["conditions"]) and len(one.pods) == 1)


def test_a_watch_ends_when_the_job_was_made_anew_meanwhile(server: ApiServer, watcher: Watcher) -> None:
    server.next(f"GET {JOBS}", Answer(410, status(410, "Expired", "too old resource version")))
    server.cut_watches()
    server.drop(DIGITS)
    put_job(server, run_id="run2")
    assert watcher.end() is None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "MAX_UNAVAILABLE_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_watch_outlives_failures_that_lie_far_apart(server: ApiServer, watcher: Watcher) -> None:
    for index in range(2):
        server.next(f"GET {PODS}", Answer(500, status(500, "InternalError", "etcd has no leader")))
        server.cut_watches()
        server.wait_until_answered(f"GET {PODS}")
        put_pod(server, index)
        watcher.until(lambda one, count=index + 1: len(one.pods) == count)


@pytest.mark.usefixtures("impatient")
def test_a_watch_gives_up_at_last(server: ApiServer, watcher: Watcher) -> None:
    server.next(f"GET {PODS}", *[Answer(500, status(500, "InternalError", "etcd has no leader"))] * 9)
    server.cut_watches()
    assert "etcd has no leader" in str(watcher.end())


def test_a_watch_that_is_no_longer_allowed_ends_with_the_reason(server: ApiServer, watcher: Watcher) -> None:
    server.next(f"GET {PODS}", Answer(403, status(403, "Forbidden", "your role was taken away")))
    server.cut_watches()
    error = watcher.end()
    assert isinstance(error, Forbidden)
    assert "watch pods in namespace 'team': your role was taken away" in str(error)


def test_a_watch_ends_when_another_thread_stops_it(watcher: Watcher) -> None:
    watcher.stop.request()
    assert watcher.end() is None


def test_a_watch_that_is_left_leaves_no_thread_behind(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server)
    before = set(threading.enumerate())
    snapshots = backend.watch("digits")
    next(snapshots)
    watching = [thread for thread in set(threading.enumerate()) - before if thread.name == "watch digits"]
    assert len(watching) == 3
    snapshots.close()  # type: ignore[attr-defined]  # it is a generator
    for thread in watching:
        thread.join(timeout=20)
        assert not thread.is_alive()


class Chunks:
    """A response of these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = [*chunks, b""]

    def read1(self, _: int) -> bytes:
        return self._chunks.pop(0)


def test_a_line_without_an_end_is_cut_and_the_next_ones_are_whole() -> None:
    piece = b"x" * (1 << 16)
    chunks = Chunks(b"one\ntw", b"o\n\n", *[piece] * 1000, b"\nthree\n" + piece + b"\nfour")
    assert list(reflector.lines(chunks, 100_000)) == [b"one", b"two", b"", b"x" * 100_000, b"three", piece, b"four"]


def test_the_last_lines_are_kept_within_their_limit() -> None:
    lines = [f"{number} {'x' * 100_000}" for number in range(100)]
    assert [*pod_output._last_lines(iter(lines))] == lines[-41:]
