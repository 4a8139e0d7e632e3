"""The objects that ``make checkov`` scans, and the failures that it skips."""

from __future__ import annotations

from tests.support.policy_cases import CASES, KINDS
from tools.scan.skips import Failure, Skip, check_skips
from tools.scan.unwrap import unwrap_pods

POD = Failure("CKV_K8S_16", "no privileged containers", "Job/a-worker", "examples")


def test_pods_of_custom_resources_become_jobs_that_are_looked_at() -> None:
    [case] = [entry for entry in CASES if entry.name == "privileged"]
    for kind in KINDS:
        seen = [item for item in unwrap_pods([kind.of(case)]) if item["kind"] in {"Pod", "Job", "CronJob"}]
        assert len(seen) == 1, kind.plural
        assert "'privileged': True" in str(seen)
        assert {item["metadata"]["namespace"] for item in seen} == {"training"}


def test_what_stands_in_no_namespace_is_put_into_none() -> None:
    roles = [{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "a"}}]
    assert list(unwrap_pods(roles)) == roles


def test_a_failure_without_a_reason_and_a_reason_without_a_failure_are_wrong() -> None:
    covering = Skip("CKV_K8S_16", "Job/a-.*", "so")
    assert check_skips([POD], [covering]) == []
    assert check_skips([POD], []) == ["CKV_K8S_16 (no privileged containers): Job/a-worker in examples"]
    assert "meets nothing" in check_skips([POD], [covering, Skip("CKV_K8S_16", "Job/b", "so")])[0]
    assert "has no reason" in check_skips([POD], [Skip("CKV_K8S_16", "Job/a-.*", "")])[0]
