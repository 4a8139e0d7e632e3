"""Facts that the preflight checks read from a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.backends.cluster.read.preflight_reader import KUEUE_CONFIG
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.render import render
from tests.support.api_server import Answer, ApiServer, kubeconfig, serving, status
from tests.support.jobs import a_job

JOBS = "/apis/batch/v1/namespaces/team/jobs"
PODS = "/api/v1/namespaces/team/pods"


def refused(folder: Path, path: str, message: str) -> list[str]:
    with serving(ApiServer()) as server:
        rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        server.next(
            "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            Answer(201, {"status": {"resourceRules": rules}}),
        )
        server.next(f"POST {path}", *[Answer(403, status(403, "Forbidden", message))] * 2)
        to = connect(kubeconfig=str(kubeconfig(folder, server.url)))
        backend = ClusterBackend(connection=to, notice=lambda _: None)
        spec = a_job()
        _, facts = backend.preflight(spec, render(spec, "run1"), is_thorough=True)
    assert isinstance(facts.refused, dict)
    return list(facts.refused.values())


@pytest.mark.parametrize(
    ("path", "what", "count"),
    [
        pytest.param(JOBS, "count/jobs.batch=1", 1, id="a quota of Jobs is not known to any other check"),
        pytest.param(PODS, "pods=1", 0, id="the check of quotas says more of pods"),
    ],
)
def test_a_quota_that_refuses_an_object_is_told_once(tmp_path: Path, path: str, what: str, count: int) -> None:
    text = f'"digits-store" is forbidden: exceeded quota: few, requested: {what}, used: {what}, limited: {what}'
    report = refused(tmp_path, path, text)
    assert len(report) == count
    assert all("exceeded quota: few" in item for item in report)


def test_the_role_of_a_refused_submission_includes_the_right_by_which_its_ranks_are_seen(tmp_path: Path) -> None:
    reviews = "POST /apis/authorization.k8s.io/v1/selfsubject"
    with serving(ApiServer()) as server:
        server.next(f"{reviews}rulesreviews", Answer(201, {"status": {"resourceRules": []}}))
        server.next(f"{reviews}accessreviews", Answer(201, {"status": {"allowed": False}}))
        to = connect(kubeconfig=str(kubeconfig(tmp_path, server.url)))
        backend = ClusterBackend(connection=to, notice=lambda _: None)
        _, facts = backend.preflight(a_job(), render(a_job(), "run1"), is_thorough=False)
    assert '"resources": ["endpointslices"], "resourceNames": ["kubernetes"]' in facts.rights_hint


@pytest.mark.parametrize("text", ["[oops", "only words", "integrations: [batch/job]"])
def test_a_configuration_of_kueue_that_cannot_be_read_ends_no_submission(tmp_path: Path, text: str) -> None:
    kueue = {"metadata": {"name": "kueue.x-k8s.io"}, "versions": [{"version": "v1beta2", "freshness": "Current"}]}
    with serving(ApiServer()) as server:
        server.next("GET /apis", Answer(200, {"kind": "APIGroupDiscoveryList", "items": [kueue]}))
        server.next(f"GET {KUEUE_CONFIG}", Answer(200, {"metadata": {"name": "config"}, "data": {"config.yaml": text}}))
        rules = Answer(201, {"status": {"resourceRules": []}})
        server.next("POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews", rules)
        to = connect(kubeconfig=str(kubeconfig(tmp_path, server.url)))
        spec = a_job(queue="team", gang="kueue")
        backend = ClusterBackend(connection=to, notice=lambda _: None)
        _, facts = backend.preflight(spec, render(a_job(), "run1"), is_thorough=False)
    assert isinstance(facts.frameworks, Unknown)
