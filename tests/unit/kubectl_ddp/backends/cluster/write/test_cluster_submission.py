from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.backends.cluster.write.submission import INCOMPLETE, Submission
from kubectl_ddp.engines import Engine
from kubectl_ddp.errors import AlreadyExists, Forbidden, NotFound, PreflightFailed, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import render
from kubectl_ddp.render.objects import secret_name
from kubectl_ddp.values.quantity import NodeRange
from tests.support.api_server import GROUPS, JOBS, Answer, ApiServer, kubeconfig, status
from tests.support.jobs import a_job

STORES = "/apis/batch/v1/namespaces/team/jobs"
SERVICES = "/api/v1/namespaces/team/services"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies"
MONITORS = "/apis/monitoring.coreos.com/v1/namespaces/team/podmonitors"
ROOT, STORE, SERVICE = f"{JOBS}/digits", f"{STORES}/digits-store", f"{SERVICES}/digits-store"
SECRETS = "/api/v1/namespaces/team/secrets"
ALL = {ROOT, STORE, SERVICE, f"{POLICIES}/digits", f"{MONITORS}/digits"}
"""Objects of every run; each run has one Secret more."""


def digits(run_id: str = "run1", **changes: Any) -> list[Object]:
    return render(a_job(**changes), run_id)


def secret_of(run_id: str) -> str:
    return f"{SECRETS}/{secret_name('digits', run_id)}"


def changes(server: ApiServer) -> list[str]:
    return [str(request) for request in server.requests if request.method != "GET"]


def test_the_suspended_root_comes_first_and_is_let_go_last(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits())
    everything = {*ALL, secret_of("run1")}
    assert set(server.objects) == everything
    made = changes(server)
    assert made[0] == f"POST {JOBS}"
    assert made[-2:] == [f"PATCH {STORE}", f"PATCH {ROOT}"]
    created = next(request.body for request in server.requests if str(request) == f"POST {JOBS}")
    assert created["spec"]["runPolicy"]["suspend"] is True
    assert INCOMPLETE in created["metadata"]["annotations"]
    root = server.objects[ROOT]
    assert root["spec"]["runPolicy"]["suspend"] is False
    assert INCOMPLETE not in root["metadata"]["annotations"]
    for path in everything - {ROOT}:
        (owner,) = server.objects[path]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("PyTorchJob", root["metadata"]["uid"])


def test_a_job_that_is_submitted_suspended_stays_so(server: ApiServer, backend: ClusterBackend) -> None:
    objects = digits()
    objects[0]["spec"]["runPolicy"]["suspend"] = True
    backend.submit(objects)
    assert server.objects[ROOT]["spec"]["runPolicy"]["suspend"] is True
    assert INCOMPLETE not in server.objects[ROOT]["metadata"]["annotations"]


def test_the_identical_job_again_changes_nothing(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits("run1"))
    before = dict(server.objects)
    backend.submit(digits("run2"))
    assert server.objects == before


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"nproc": 1}, "PyTorchJob 'digits' in namespace 'team' of context 'test' already.*--name"),
    ({"engine": Engine.JOB}, "another PyTorchJob 'digits' in namespace 'team'.*delete digits"),
], ids=["the same engine", "another engine"])  # fmt: skip
def test_another_job_of_the_name_is_refused_and_the_first_stays(
    server: ApiServer, backend: ClusterBackend, changes: dict[str, Any], sentence: str
) -> None:
    """Pods of two engines would have the same labels, and each command would show both as one job."""
    backend.submit(digits())
    before = dict(server.objects)
    with pytest.raises(AlreadyExists, match=sentence):
        backend.submit(digits(**changes))
    assert server.objects == before


def test_the_name_in_another_namespace_is_another_job(
    server: ApiServer, backend: ClusterBackend, tmp_path: Path
) -> None:
    other = connect(kubeconfig=str(kubeconfig(tmp_path, server.url)), namespace="other")
    places = {"PyTorchJob": backend, "Job": ClusterBackend(connection=other)}
    for kind, there in places.items():
        there.submit(digits(f"run-{kind}", engine=Engine(kind.lower())))
    for kind, there in places.items():
        job = there.job("digits", events=False).job
        assert (job["kind"], job["metadata"]["labels"][Label.RUN_ID]) == (kind, f"run-{kind}")
        there.delete("digits")
        with pytest.raises(NotFound):
            there.job("digits", events=False)


@pytest.mark.parametrize("died_after", range(1, 8))
def test_a_submission_that_died_anywhere_runs_nothing_and_is_made_whole_by_the_next(
    server: ApiServer, backend: ClusterBackend, died_after: int
) -> None:
    """The refused DELETE stands for SIGKILL: the first submission does not clean up."""
    made = (SECRETS, STORES, SERVICES, POLICIES, MONITORS)
    order = [f"POST {path}" for path in made] + [f"PATCH {STORE}", f"PATCH {ROOT}"]
    for request in (order[died_after - 1], f"DELETE {ROOT}"):
        server.next(request, Answer(403, status(403, "Forbidden", "dead")))
    with pytest.raises(Forbidden):
        backend.submit(digits("run1"))
    assert server.objects[ROOT]["spec"]["runPolicy"]["suspend"] is True
    backend.submit(digits("run2"))
    server.collect_garbage()
    everything = {*ALL, secret_of("run2")}
    assert set(server.objects) == everything
    assert {server.objects[path]["metadata"]["labels"][Label.RUN_ID] for path in everything} == {"run2"}
    owners = {server.objects[path]["metadata"]["ownerReferences"][0]["uid"] for path in everything - {ROOT}}
    assert owners == {server.objects[ROOT]["metadata"]["uid"]}
    assert server.objects[ROOT]["spec"]["runPolicy"]["suspend"] is False


def test_a_companion_that_is_refused_takes_the_root_back(server: ApiServer, backend: ClusterBackend) -> None:
    server.next(f"POST {POLICIES}", Answer(403, status(403, "Forbidden", "no networkpolicies for you")))
    with pytest.raises(Forbidden, match=r"create networkpolicies\.networking\.k8s\.io"):
        backend.submit(digits())
    assert ROOT not in server.objects


TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"
TRAINER_GROUPS = {TRAINER: {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}}
TRAIN_JOBS = f"{TRAINER}/namespaces/team/trainjobs"


UNHEARD_OF = (
    (
        'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: Invalid '
        'value: {{"name":"{name}"}}: TrainingRuntime.trainer.kubeflow.org "{name}" not found: specified '
        "trainingRuntime must be created before the TrainJob is created"
    ),
    "admission webhook \"vtrainjob.kb.io\" denied the request: runtime '{name}' not found",
)
"""Refusals by the webhooks of Kubeflow Trainer 2.3."""


@pytest.mark.parametrize("sentence", UNHEARD_OF)
def test_a_webhook_without_the_runtime_is_asked_again(
    server: ApiServer, backend: ClusterBackend, sentence: str
) -> None:
    server.groups = {**GROUPS, **TRAINER_GROUPS}
    unheard_of = Answer(403, status(403, "Forbidden", sentence.format(name="digits")))
    server.next(f"POST {TRAIN_JOBS}", unheard_of, unheard_of)
    backend.submit(digits(engine=Engine.TRAINJOB))
    assert INCOMPLETE not in server.objects[f"{TRAIN_JOBS}/digits"]["metadata"]["annotations"]


def test_a_missing_runtime_of_somebody_else_is_told_at_once(server: ApiServer, backend: ClusterBackend) -> None:
    server.groups = {**GROUPS, **TRAINER_GROUPS}
    server.next(f"POST {TRAIN_JOBS}", Answer(403, status(403, "Forbidden", UNHEARD_OF[0].format(name="other"))))
    with pytest.raises(Forbidden, match='"other" not found'):
        backend.submit(digits(engine=Engine.TRAINJOB))


def test_a_companions_name_that_is_taken_is_said_and_theirs_stays(server: ApiServer, backend: ClusterBackend) -> None:
    foreign = server.put(SERVICE, {"spec": {"ports": []}})
    with pytest.raises(AlreadyExists, match=r"another Service 'digits-store'"):
        backend.submit(digits())
    assert server.objects[SERVICE] == foreign
    assert ROOT not in server.objects


def test_what_a_deleted_job_of_the_name_left_behind_is_replaced(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits("run1"))
    server.drop(ROOT)
    backend.submit(digits("run2", nproc=1))
    assert {server.objects[path]["metadata"]["labels"][Label.RUN_ID] for path in ALL} == {"run2"}


def test_a_lost_answer_is_no_taken_name(server: ApiServer, backend: ClusterBackend) -> None:
    """The server stores the object of the first POST, and answers that it is busy."""
    real = server.answer

    def create_then_say_later(request: Any) -> Answer:
        if str(request) == f"POST {SERVICES}" and SERVICE not in server.objects:
            real(request)
            return Answer(429, status(429, "TooManyRequests", "busy"), {"Retry-After": "0"})
        return real(request)

    server.answer = create_then_say_later  # type: ignore[method-assign]
    backend.submit(digits())
    assert set(server.objects) == {*ALL, secret_of("run1")}


def test_a_job_that_is_being_deleted_still_has_its_name(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits())
    metadata = server.objects[ROOT]["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    server.put(ROOT, server.objects[ROOT] | {"metadata": metadata})
    with pytest.raises(AlreadyExists, match="being deleted; try again"):
        backend.submit(digits())


def without(kind: str) -> Mapping[str, Mapping[str, str]]:
    return {group: kinds for group, kinds in GROUPS.items() if kind not in kinds}


def test_a_pod_monitor_is_left_out_with_a_word_where_no_one_would_read_it(
    server: ApiServer, backend: ClusterBackend, notices: list[str]
) -> None:
    server.groups = without("PodMonitor")
    backend.submit(digits())
    assert set(server.objects) == ALL - {f"{MONITORS}/digits"} | {secret_of("run1")}
    (notice,) = notices
    assert notice.startswith("PodMonitor is left out")


def test_without_the_operator_nothing_is_created_and_it_is_named(server: ApiServer, backend: ClusterBackend) -> None:
    server.groups = without("PyTorchJob")
    with pytest.raises(PreflightFailed, match=r"'test' does not know PyTorchJob.*training operator") as caught:
        backend.submit(digits())
    assert caught.value.exit_code == 4
    assert not changes(server)
    assert backend.jobs() == [], "jobs of other engines may exist"


def racks() -> list[Object]:
    """A job of NVLink between machines, with network devices that are claimed."""
    return digits(gpus=2, nnodes=NodeRange(2, 2), fabric="gb200-mnnvl+gcp-gib-dra")


def test_the_objects_of_a_fabric_are_owned_by_the_root(server: ApiServer, backend: ClusterBackend) -> None:
    server.groups = {
        **GROUPS,
        "/apis/resource.nvidia.com/v1beta1": {"ComputeDomain": "computedomains"},
        "/apis/resource.k8s.io/v1": {"ResourceClaimTemplate": "resourceclaimtemplates"},
    }
    backend.submit(racks())
    for name in ("computedomains/digits", "resourceclaimtemplates/digits-rdma"):
        [item] = [item for path, item in server.objects.items() if path.endswith(name)]
        [owner] = item["metadata"]["ownerReferences"]
        assert owner["uid"] == server.objects[ROOT]["metadata"]["uid"]


def test_a_cluster_without_the_driver_of_a_fabric_creates_nothing(server: ApiServer, backend: ClusterBackend) -> None:
    with pytest.raises(PreflightFailed, match=r"know (ComputeDomain.*DRA driver|ResourceClaimTemplate.*1\.34)"):
        backend.submit(racks())
    assert not changes(server)


def test_a_dry_run_asks_for_every_object_and_creates_none(server: ApiServer, backend: ClusterBackend) -> None:
    answered = backend.dry_run(digits())
    assert [item["dry"] for item in answered] == [True] * 6
    assert {request.query["dryRun"] for request in server.requests if request.method == "POST"} == {"All"}
    assert not server.objects
    assert not any("ownerReferences" in request.body["metadata"] for request in server.requests if request.body)


def test_a_dry_run_of_a_job_that_is_there_answers_as_submit(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits())
    there = backend.dry_run(digits("run2"))
    assert {item["metadata"]["labels"][Label.RUN_ID] for item in there} == {"run1"}
    with pytest.raises(AlreadyExists):
        backend.dry_run(digits(nproc=1))
    assert {request.method for request in server.requests if "/secrets" in request.path} == {"POST"}


def test_a_job_file_may_name_the_namespace(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits(namespace="other"))
    assert set(server.objects) == {path.replace("/team/", "/other/") for path in (*ALL, secret_of("run1"))}


def test_objects_without_a_root_are_no_job(backend: ClusterBackend) -> None:
    with pytest.raises(UsageError, match="here are 0"):
        backend.submit(digits()[1:])


def test_a_job_has_no_pod_monitor_where_the_platform_has_one(server: ApiServer, backend: ClusterBackend) -> None:
    server.put(f"{MONITORS}/ddp-workers", {})
    backend.submit(digits())
    assert set(server.objects) == ALL - {f"{MONITORS}/digits"} | {f"{MONITORS}/ddp-workers", secret_of("run1")}


def test_the_secret_of_a_run_is_made_once_and_never_read(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(digits())
    backend.submit(digits("run2"))  # the identical job: nothing is made
    paths = [str(request) for request in server.requests if "/secrets" in request.path]
    assert paths == [f"POST {SECRETS}"]
    [made] = [item for path, item in server.objects.items() if path.startswith(SECRETS)]
    assert made["immutable"] is True


def test_the_secret_of_a_cut_off_submission_goes_before_the_run_gets_another(server: ApiServer, api: Api) -> None:
    """``restart`` completes an interrupted submission: it keeps the run ID and creates another Secret."""
    server.put(secret_of("run1"), {"metadata": {"ownerReferences": [{"uid": "of the root before"}]}})
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            server.collect_garbage()

    objects = digits()
    Submission(api, objects, "team", notice=print, sleep=sleep).submit()
    [secret] = [item for item in objects if item["kind"] == "Secret"]
    assert server.objects[secret_of("run1")]["stringData"] == secret["stringData"]
    assert not [request for request in server.requests if "/secrets/" in request.path]


def test_a_secret_of_that_name_that_stays_is_not_used(server: ApiServer, api: Api) -> None:
    foreign = server.put(secret_of("run1"), {"stringData": {"run-secret": "run1:known to others"}})
    with pytest.raises(AlreadyExists, match=r"another Secret 'digits-run-.*Submit again"):
        Submission(api, digits(), "team", notice=print, sleep=lambda _: None).submit()
    assert server.objects == {secret_of("run1"): foreign}
