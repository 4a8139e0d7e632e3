"""Facts that the preflight checks read from a cluster."""

from __future__ import annotations

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.read.preflight_reader import KUEUE_CONFIG
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.render import render
from tests.support.api_server import ALL_ALLOWED, PODS, Answer, ApiServer, status
from tests.support.jobs import a_job

JOBS = "/apis/batch/v1/namespaces/team/jobs"
REVIEWS = "POST /apis/authorization.k8s.io/v1/selfsubject"


@pytest.mark.parametrize(("path", "what", "count"), [
    pytest.param(JOBS, "count/jobs.batch=1", 1, id="a quota of Jobs is not known to any other check"),
    pytest.param(PODS, "pods=1", 0, id="the check of quotas says more of pods"),
])  # fmt: skip
def test_a_quota_that_refuses_an_object_is_told_once(
    server: ApiServer, backend: ClusterBackend, path: str, what: str, count: int
) -> None:
    server.next(f"{REVIEWS}rulesreviews", ALL_ALLOWED)
    text = f'"digits-store" is forbidden: exceeded quota: few, requested: {what}, used: {what}, limited: {what}'
    server.next(f"POST {path}", *[Answer(403, status(403, "Forbidden", text))] * 2)
    _, facts = backend.preflight(a_job(), render(a_job(), "run1"), is_thorough=True)
    assert isinstance(facts.refused, dict)
    assert len(facts.refused) == count
    assert all("exceeded quota: few" in item for item in facts.refused.values())


def test_the_role_of_a_refused_submission_includes_the_right_by_which_its_ranks_are_seen(
    server: ApiServer, backend: ClusterBackend
) -> None:
    server.next(f"{REVIEWS}rulesreviews", Answer(201, {"status": {"resourceRules": []}}))
    server.next(f"{REVIEWS}accessreviews", Answer(201, {"status": {"allowed": False}}))
    _, facts = backend.preflight(a_job(), render(a_job(), "run1"), is_thorough=False)
    assert '"resources": ["endpointslices"], "resourceNames": ["kubernetes"]' in facts.rights_hint


@pytest.mark.parametrize("text", ["[oops", "only words", "integrations: [batch/job]"])
def test_a_configuration_of_kueue_that_cannot_be_read_ends_no_submission(
    server: ApiServer, backend: ClusterBackend, text: str
) -> None:
    kueue = {"metadata": {"name": "kueue.x-k8s.io"}, "versions": [{"version": "v1beta2", "freshness": "Current"}]}
    server.next("GET /apis", Answer(200, {"kind": "APIGroupDiscoveryList", "items": [kueue]}))
    server.next(f"GET {KUEUE_CONFIG}", Answer(200, {"metadata": {"name": "config"}, "data": {"config.yaml": text}}))
    server.next(f"{REVIEWS}rulesreviews", Answer(201, {"status": {"resourceRules": []}}))
    spec = a_job(queue="team", gang="kueue")
    _, facts = backend.preflight(spec, render(a_job(), "run1"), is_thorough=False)
    assert isinstance(facts.frameworks, Unknown)
