"""Every expression of the admission policies, asked on this machine; tests/cluster asks the API server the same."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from click.testing import CliRunner

from kubectl_ddp.cli.group import root
from tests.support import policy_cases
from tests.support.helm import PLATFORM, Helm
from tests.support.policy_cases import CASES, DIGEST, KINDS, NETWORK_POLICY, RULES, Case, Kind, name_of, policies

pytest.importorskip("celpy", reason="cel-python, of the dependency group 'test', is not installed")

from tests.support.policy_evaluator import Policy

Json = dict[str, Any]
ENGINES = ("pytorchjob", "trainjob", "jobset", "job")
LOOKED_AT = {kind: f"{kind.lower()}s" for kind in ("Pod", "Job", "PyTorchJob", "JobSet", "TrainingRuntime")}


def policy(rule: str, **values: Any) -> Policy:
    found = {item["metadata"]["name"]: item for item in policies(**values) if not item["kind"].endswith("Binding")}
    return Policy(found[name_of(rule)])


def bindings(**values: Any) -> dict[str, Json]:
    return {item["metadata"]["name"]: item["spec"] for item in policies(**values) if item["kind"].endswith("Binding")}


def test_each_rule_is_one_policy_with_a_binding_of_its_name_for_the_namespaces_of_the_platform() -> None:
    names = [item["metadata"]["name"] for item in policies() if not item["kind"].endswith("Binding")]
    assert sorted(names) == sorted(map(name_of, RULES)) == sorted(bindings())
    for name, spec in bindings(namespace="lab").items():
        assert spec["policyName"] == name
        [which, but] = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert which == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["lab"]}
        assert but == {"key": f"ddp.dev/allow{name.removeprefix('ddp')}", "operator": "NotIn", "values": ["true"]}


def test_the_platforms_own_pods_are_not_refused_for_want_of_a_digest(helm: Helm) -> None:
    deny = {"policies": {"imageDigest": "Deny"}}
    assert "image.digest is empty" in helm.error_response(PLATFORM, deny)
    digest = {"image": {"digest": DIGEST.partition("@")[2]}}
    assert helm.template(PLATFORM, {**deny, **digest})
    pull = {"prePull": {"enabled": True, "images": ["example.com/other:1"]}}
    assert "'example.com/other:1', which has no digest" in helm.error_response(PLATFORM, {**deny, **digest, **pull})


def test_an_unknown_rule_or_action_is_refused(helm: Helm) -> None:
    for rule, action in (("hostPaths", "Deny"), ("hostPath", "deny"), ("hostPath", True)):
        assert "policies" in helm.error_response(PLATFORM, {"policies": {rule: action}})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule_names_the_fields_that_break_it_and_the_way_out(case: Case, kind: Kind) -> None:
    message = policy(case.rule).error_response(kind.plural, kind.of(case))
    fields = kind.fields(case)
    assert bool(message) == bool(fields), message
    assert not message or message.startswith(f"{', '.join(fields)}: ")
    assert not message or message.endswith(f" ddp.dev/allow{name_of(case.rule).removeprefix('ddp')}=true.")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_minds_only_its_own_business(rule: str) -> None:
    judged = policy(rule)
    [pods, jobs, *_] = KINDS
    for case in CASES:
        if case.rule != rule:
            assert judged.error_response(pods.plural, pods.of(case)) == "", case.name
            assert judged.error_response(jobs.plural, jobs.of(case)) == "", case.name


def test_the_audiences_of_the_cluster_are_compared_exactly() -> None:
    [pods, *_] = KINDS
    issuer = "https://oidc.example.com/id/1"
    judged = policy("apiToken", more={"policies": {"apiAudiences": [issuer]}})

    def refused(audience_name: str | None) -> bool:
        metadata = {} if audience_name is None else {"audience": audience_name}
        volume = {"name": "more", "projected": {"sources": [{"serviceAccountToken": {"path": "token", **metadata}}]}}
        return bool(judged.error_response("pods", pods.make({**policy_cases.a_spec(), "volumes": [volume]})))

    assert refused(issuer)
    assert refused(None)
    assert not refused(issuer[:-1])
    assert not refused(f"{issuer}/more")


@pytest.mark.parametrize("patch", policy_cases.PATCHES, ids=lambda patch: patch.name)
def test_who_may_only_patch_a_workload_changes_spec_active_alone(patch: policy_cases.Patch) -> None:
    judged = policy(policy_cases.WORKLOAD_PATCH, workloadPatch="Deny")
    old = policy_cases.a_workload("w") | {"metadata": {**policy_cases.a_workload("w")["metadata"], "uid": "UID"}}
    message = judged.error_response("workloads", merged(old, patch.change), old, may=["patch workloads.kueue.x-k8s.io"])
    assert message.partition(": ")[0] == ", ".join(patch.fields)
    assert judged.error_response("workloads", merged(old, patch.change), old, may=[policy_cases.MAY_UPDATE]) == ""


def merged(item: Any, patch: Any) -> Any:
    """Return the item after a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    base = item if isinstance(item, dict) else {}
    changed = {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}
    return {key: value for key, value in base.items() if key not in patch} | changed


def test_the_policy_for_workloads_holds_in_all_namespaces_and_can_be_turned_off() -> None:
    found = bindings(otherwise="Off", workloadPatch="Audit")
    assert found == {"ddp-workload-patch": {"policyName": "ddp-workload-patch", "validationActions": ["Audit"]}}
    assert policies(otherwise="Off", workloadPatch="off") == []


EVERYWHERE = "update secrets. everywhere"


def test_a_secret_for_a_token_is_refused_to_users_and_not_to_administrators() -> None:
    judged = policy("apiToken")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t"}, "type": "Opaque"}
    token = {**secret, "type": "kubernetes.io/service-account-token"}
    message = judged.error_response("secrets", token, may=["create secrets.", "update secrets."])
    assert message.startswith("type 'kubernetes.io/service-account-token': ")
    assert judged.error_response("secrets", token, may=[EVERYWHERE]) == ""
    assert judged.error_response("secrets", secret) == ""
    del secret["type"]
    assert judged.error_response("secrets", secret) == ""


POLICIES = "networkpolicies.networking.k8s.io"
MAY_CHANGE_A_NAMESPACE = [f"{verb} {POLICIES}" for verb in ("update", "delete", "deletecollection")]


def test_the_platforms_network_policies_are_changed_and_deleted_by_administrators_alone(helm: Helm) -> None:
    judged = policy(NETWORK_POLICY, networkPolicy="Deny")
    found = helm.template(PLATFORM, {"namespaces": [{"name": "training"}]})
    for item in (entry for entry in found if entry["kind"] == "NetworkPolicy"):
        opened = {**item, "metadata": {**item["metadata"], "labels": {}}, "spec": {**item["spec"], "ingress": [{}]}}
        for after in (opened, None):
            message = judged.error_response("networkpolicies", after, item, may=MAY_CHANGE_A_NAMESPACE)
            assert "administrator" in message
            for right in MAY_CHANGE_A_NAMESPACE[::2]:
                assert judged.error_response("networkpolicies", after, item, may=[f"{right} everywhere"]) == ""
    own = a_network_policy([])
    for after, before in ((own, None), (own, own), (None, own)):
        assert judged.error_response("networkpolicies", after, before) == ""


def a_network_policy(egress: list[Json]) -> Json:
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": egress}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "mine"}, "spec": spec}


DNS_PORT: Json = {"port": 53, "protocol": "UDP"}
DNS_ADDRESS: Json = {"ipBlock": {"cidr": "169.254.20.10/32"}}


@pytest.mark.parametrize(
    ("rule", "is_refused"),
    [
        ({}, True),
        ({"ports": [DNS_PORT]}, True),
        ({"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, True),
        ({"to": [{"podSelector": {}}, {"namespaceSelector": {}}]}, True),
        ({"to": [DNS_ADDRESS]}, True),
        ({"to": [DNS_ADDRESS], "ports": [DNS_PORT, {"port": 443}]}, True),
        ({"to": [DNS_ADDRESS], "ports": [{"port": 53, "endPort": 443}]}, True),
        ({"to": [DNS_ADDRESS], "ports": [DNS_PORT]}, False),
        ({"to": [{"podSelector": {"matchLabels": {"a": "b"}}}]}, False),
    ],
)
def test_in_a_closed_namespace_users_open_no_egress(rule: Json, *, is_refused: bool) -> None:
    closed = {"networkPolicy": {"egress": "closed"}}
    own = a_network_policy([rule])
    judged = policy(NETWORK_POLICY, networkPolicy="Deny", more=closed)
    assert bool(judged.error_response("networkpolicies", own)) is is_refused
    assert policy(NETWORK_POLICY, networkPolicy="Deny").error_response("networkpolicies", own) == ""


@pytest.mark.parametrize("dns", [(), ("--dns", "10.96.0.10")])
def test_a_closed_job_is_admitted_to_a_closed_namespace(dns: tuple[str, ...]) -> None:
    servers = [{"ipBlock": {"cidr": "10.96.0.10/32"}}]
    judged = policy(NETWORK_POLICY, networkPolicy="Deny", more={"networkPolicy": {"egress": "closed", "dns": servers}})
    words = ("render", "--module", "train", "--image", DIGEST, "--egress", "closed", *dns, "-o", "json")
    done = CliRunner().invoke(root(), words)
    [item] = [item for item in json.loads(done.stdout)["items"] if item["kind"] == "NetworkPolicy"]
    assert judged.error_response("networkpolicies", item) == ""


def test_what_is_older_than_a_policy_may_still_be_let_go_and_no_worse_thing_can_be_put_in_its_place() -> None:
    [pods, jobs, *_] = KINDS
    [tag] = [case for case in CASES if case.name == "tag"]
    judged = policy("imageDigest")
    pod = pods.of(tag)
    held = deepcopy(pod) | {"metadata": {"name": "a", "finalizers": ["batch.kubernetes.io/job-tracking"]}}
    assert judged.error_response("pods", pod, held) == ""
    before = deepcopy(pod)
    before["spec"]["containers"][0]["image"] = DIGEST
    assert "spec.containers[main].image" in judged.error_response("pods", pod, before)
    job = jobs.of(tag)
    assert judged.error_response("jobs", {**job, "spec": {**job["spec"], "suspend": False}}, job) == ""


def test_a_container_that_is_added_to_look_into_a_pod_is_looked_at_too() -> None:
    [pods, *_] = KINDS
    old = pods.of(CASES[0])
    new = deepcopy(old)
    new["spec"]["ephemeralContainers"] = [{**policy_cases.a_container("look"), "securityContext": {"privileged": True}}]
    del new["spec"]["ephemeralContainers"][0]["resources"]  # Kubernetes allows it none
    message = policy("privileged").error_response("pods/ephemeralcontainers", new, old)
    assert message.startswith("spec.ephemeralContainers[look].securityContext.privileged: ")
    assert policy("memoryLimit").error_response("pods/ephemeralcontainers", new, old) == ""


def test_templates_may_leave_the_limit_to_a_limit_range_that_gives_one() -> None:
    [pods, jobs, *_] = KINDS
    [bare] = [case for case in CASES if case.name == "no-resources"]
    limits = {"limitRange": {"enabled": True, "default": {"memory": "1Gi"}}}
    judged = policy("memoryLimit", more=limits)
    assert judged.error_response("jobs", jobs.of(bare)) == ""
    assert "containers[main]" in judged.error_response("pods", pods.of(bare))
    cpu_alone = {"limitRange": {"enabled": True, "default": {"cpu": "1"}}}
    assert "containers[main]" in policy("memoryLimit", more=cpu_alone).error_response("jobs", jobs.of(bare))


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_all_there_yet_is_let_in(rule: str) -> None:
    """Objects that the schemas of the operators allow."""
    judged = policy(rule)
    for spec in ({"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}, {"pytorchReplicaSpecs": {}}):
        job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}
        assert judged.error_response("pytorchjobs", job) == ""
    of_no_job = {"name": "a", "template": {}}
    for spec in ({}, {"replicatedJobs": []}, {"replicatedJobs": [of_no_job]}):
        job_set = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec}
        assert judged.error_response("jobsets", job_set) == ""
        runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime"}
        assert judged.error_response("trainingruntimes", {**runtime, "spec": {"template": {"spec": spec}}}) == ""
        assert judged.error_response("trainingruntimes", {**runtime, "spec": {}}) == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_our_own_jobs_break_no_rule(engine: str) -> None:
    size = ("--nnodes", "1:2", "--gpus", "8", "--checkpoint-claim", "kept")
    words = ("--module", "train", "--engine", engine, "--image", DIGEST, *size)
    done = CliRunner().invoke(root(), ["render", *words, "-o", "json"])
    assert done.exit_code == 0, done.output
    looked_at = [item for item in json.loads(done.stdout)["items"] if item["kind"] in LOOKED_AT]
    assert len(looked_at) >= 2
    for item in looked_at:
        for rule in RULES:
            assert policy(rule).error_response(LOOKED_AT[item["kind"]], item) == ""


@pytest.mark.parametrize("rule", RULES)
def test_the_platforms_own_pods_break_no_rule(helm: Helm, rule: str) -> None:
    values = {"image": {"digest": DIGEST.partition("@")[2]}, "prePull": {"enabled": True}}
    own = [item for item in helm.template(PLATFORM, values) if item["kind"] in {"Job", "DaemonSet"}]
    assert sorted(item["kind"] for item in own) == ["DaemonSet", "Job"]
    for item in own:
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": item["spec"]["template"]["spec"]}
        assert policy(rule).error_response("pods", pod) == ""
        assert policy(rule).error_response("jobs", {**item, "apiVersion": "batch/v1", "kind": "Job"}) == ""
