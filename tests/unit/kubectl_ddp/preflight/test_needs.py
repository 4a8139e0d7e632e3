"""Volumes, Secrets, ConfigMaps, priorities and quotas that a job names or meets."""

from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight import namespace_checks
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, check_dry_run, check_rights, run_checks
from kubectl_ddp.preflight.model import PreflightFacts, Unknown
from kubectl_ddp.preflight.namespace_checks import check_image_pull_secrets, check_priority_class, check_secrets
from kubectl_ddp.preflight.resources import check_resource_quota
from kubectl_ddp.util.finding import Severity, max_severity
from kubectl_ddp.values.parsers import EnvSource, SecretKey
from kubectl_ddp.values.pod import Mount, SecretFiles
from kubectl_ddp.values.quantity import NodeRange
from tests.support.cluster_facts import a_node, a_subject, facts


def a_claim(*modes: str, phase: str = "Bound", **metadata: Any) -> Object:
    return {"metadata": metadata, "spec": {"accessModes": list(modes)}, "status": {"phase": phase}}


SMALL = [a_node("a", cpu="3"), a_node("b", cpu="3")]
LARGE = [a_node("a", cpu="64")]


@pytest.mark.parametrize(
    ("claim", "nodes", "severity", "words"),
    [
        (None, SMALL, Severity.ERROR, "PersistentVolumeClaim 'data' does not exist in namespace 'team'"),
        (a_claim("ReadWriteMany"), SMALL, Severity.OK, "is there"),
        (a_claim("ReadWriteOnce"), SMALL, Severity.ERROR, "one machine only (ReadWriteOnce)"),
        (a_claim("ReadWriteOnce"), LARGE, Severity.WARNING, "one machine only"),
        (a_claim("ReadWriteOncePod"), LARGE, Severity.ERROR, "one pod only"),
        (a_claim("ReadOnlyMany"), SMALL, Severity.ERROR, "ReadOnlyMany"),
        (a_claim("ReadWriteMany", phase="Pending"), SMALL, Severity.WARNING, "has no storage yet"),
        (a_claim("ReadWriteMany", phase="Lost"), SMALL, Severity.ERROR, "is lost"),
        (a_claim("ReadWriteMany", deletionTimestamp="now"), SMALL, Severity.ERROR, "is being deleted"),
    ],
)
def test_a_volume_serves_all_nodes(claim: Object | None, nodes: list[Object], severity: Severity, words: str) -> None:
    job = a_subject(nnodes=NodeRange(2, 2), checkpoint_claim="data")
    [found] = namespace_checks.check_volume_claims(job, facts(claims={"data": claim}, nodes=nodes))
    assert (found.severity, words in found.message) == (severity, True), found


def test_a_volume_that_is_only_read_may_be_read_only() -> None:
    job = a_subject(nnodes=NodeRange(2, 2), mounts=(Mount.parse("pvc=data:/data:ro"),))
    [found] = namespace_checks.check_volume_claims(job, facts(claims={"data": a_claim("ReadOnlyMany")}, nodes=SMALL))
    assert found.severity is Severity.OK


def test_secrets_and_their_entries_are_there_or_named() -> None:
    job = a_subject(
        secret_env={"TOKEN": SecretKey("hub", "token"), "KEY": SecretKey("hub", "key")},
        env_from=(EnvSource("secret", "all"), EnvSource("configmap", "settings")),
        secrets=(SecretFiles("files", "/secrets/files"),),
        mounts=(Mount.parse("configmap=app:/app"),),
    )
    known = facts(secrets={"hub": frozenset({"token"}), "all": None, "files": frozenset()}, config_maps={"app": None})
    report = [(item.severity, item.message) for item in check_secrets(job, known)]
    assert (Severity.ERROR, "The Secret 'hub' has no entry key.") in report
    assert (Severity.ERROR, "Secret 'all' does not exist in namespace 'team'.") in report
    assert (Severity.OK, "The Secret 'files' is there.") in report
    assert {item.message.split("'")[1] for item in namespace_checks.check_config_maps(job, known)} == {
        "app",
        "settings",
    }


def test_a_pull_secret_that_is_not_there_is_named() -> None:
    account = {"imagePullSecrets": [{"name": "registry"}]}
    [found] = check_image_pull_secrets(a_subject(), facts(account=account, secrets={"registry": None}))
    assert (found.severity, "'registry'" in found.message) == (Severity.WARNING, True)


def test_a_pull_secret_and_a_service_account_that_the_job_names_must_be_there() -> None:
    job = a_subject(image_pull_secrets=("registry",), service_account="s3-reader")
    known = facts(account=None, secrets={"registry": None})
    found = [*check_secrets(job, known), *check_image_pull_secrets(job, known)]
    assert [(item.severity, item.message) for item in found] == [
        (Severity.ERROR, "Secret 'registry' does not exist in namespace 'team'."),
        (Severity.ERROR, "ServiceAccount 's3-reader' does not exist in namespace 'team'."),
    ]


def test_a_priority_is_there_or_not() -> None:
    job = a_subject(priority="high")
    assert [item.severity for item in check_priority_class(job, facts(priority=None))] == [Severity.ERROR]
    assert [item.severity for item in check_priority_class(job, facts(priority={"value": 1}))] == [Severity.OK]


@pytest.mark.parametrize(
    ("hard", "used", "severity"),
    [
        ({"requests.cpu": "8"}, {}, Severity.OK),
        ({"cpu": "4050m"}, {}, Severity.OK),
        ({"requests.cpu": "4"}, {}, Severity.ERROR),
        ({"limits.memory": "8Gi"}, {"limits.memory": "5Gi"}, Severity.WARNING),
        ({"pods": "2"}, {}, Severity.ERROR),
        ({"requests.nvidia.com/gpu": "0"}, {}, Severity.OK),
        ({"count/secrets": "1"}, {"count/secrets": "9"}, Severity.OK),
    ],
)
def test_what_is_left_of_a_quota_is_enough_for_the_nodes_and_the_store(
    hard: dict[str, str], used: dict[str, str], severity: Severity
) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}
    found = list(check_resource_quota(a_subject(nnodes=NodeRange(2, 2)), facts(quotas=[quota])))
    assert max_severity(found) is severity, found


def test_a_quota_for_other_pods_is_left_aside() -> None:
    def quota(**spec: Any) -> Object:
        return {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}, **spec}}

    def selects(operator: str, *values: str) -> dict[str, Any]:
        return {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": list(values)}]}

    others = [quota(scopes=["BestEffort"]), quota(scopes=["Terminating"]), quota(scopeSelector=selects("In", "low"))]
    job = a_subject(priority="high")
    assert list(check_resource_quota(job, facts(quotas=others))) == []
    own = [quota(scopeSelector=selects("In", "high"))]
    assert max_severity(list(check_resource_quota(job, facts(quotas=own)))) is Severity.ERROR


def test_everything_that_is_not_allowed_is_said_at_once() -> None:
    lacking = facts(rights=["create jobs.batch", "list pods"], rights_hint="Ask.")
    [found] = check_rights(a_subject(), lacking)
    assert found.message == "You may not create jobs.batch, list pods in namespace 'team'."
    assert found.hint == "Ask."


def test_a_refusal_that_both_pods_meet_is_said_once() -> None:
    [found] = check_dry_run(a_subject(), facts(refused={"0": "no", "1": "no"}))
    assert (found.severity, found.message) == (Severity.ERROR, "no")


def test_what_could_not_be_read_is_said_and_neither_passed_nor_failed() -> None:
    [found] = run_checks(OF_THE_CLUSTER, a_subject(), PreflightFacts(nodes=Unknown("You may not list nodes.")))[:1]
    assert (found.severity, found.message) == (Severity.UNKNOWN, "You may not list nodes.")
    assert run_checks(OF_THE_CLUSTER, a_subject(), PreflightFacts()) == [], "nobody asked"
