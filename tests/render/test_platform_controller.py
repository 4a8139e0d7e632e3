"""The controller in the chart: exactly the rights that its code needs, and a pod for Pod Security `restricted`."""

from __future__ import annotations

from itertools import product
from typing import Any

from ddp_controller.__main__ import _parser
from ddp_controller.rbac_rules import controller_rights
from kubectl_ddp.preflight.controllers import CONTROLLER_SELECTOR
from kubectl_ddp.rbac.rights import EVERYWHERE, OWN, Right
from tests.support.helm import PLATFORM, Helm
from tests.support.pod_security import beyond_restricted
from tools.docs.ddpjob_crd import crd_object


def made(helm: Helm, **values: Any) -> dict[str, Any]:
    found = helm.template(PLATFORM, {"controller": values})
    return {item["kind"]: item for item in found if item["metadata"]["name"] == "ddp-controller"}


def of_its_jobs(helm: Helm, *namespaces: str) -> list[dict[str, Any]]:
    found = helm.template(PLATFORM, {"controller": {"namespaces": namespaces, "ddpJobs": False}})
    return [item for item in found if item["metadata"]["name"] == "ddp-controller-jobs"]


def granted(role: dict[str, Any], where: str) -> set[Right]:
    return {
        Right(*words, where, tuple(rule.get("resourceNames") or ()))
        for rule in role["rules"]
        for words in product(rule["verbs"], rule["apiGroups"], rule["resources"])
    }


def test_without_it_the_platform_has_neither_controller_nor_ddpjobs(helm: Helm) -> None:
    found = helm.template(PLATFORM, {"controller": {"enabled": False}})
    assert [item for item in found if item["metadata"]["labels"]["app.kubernetes.io/component"] == "controller"] == []


def test_the_roles_have_exactly_the_rights_that_the_controller_checks_at_its_start(helm: Helm) -> None:
    found = made(helm, ddpJobs=False)
    assert granted(found["ClusterRole"], EVERYWHERE) | granted(found["Role"], OWN) == set(controller_rights())


def test_ddpjobs_bring_their_kind_which_stays_and_further_rights(helm: Helm) -> None:
    found = helm.template(PLATFORM)
    [kind] = [item for item in found if item["kind"] == "CustomResourceDefinition"]
    assert kind["spec"] == crd_object()["spec"]
    assert kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    roles = {item["kind"]: item for item in found if item["metadata"]["name"] == "ddp-controller"}
    rights = granted(roles["ClusterRole"], EVERYWHERE) | granted(roles["Role"], OWN)
    assert rights == set(controller_rights(has_ddpjobs=True))
    reading = {right.verb for right in rights if right.resource == "secrets"}
    assert reading == {"create"}
    container = roles["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert _parser().parse_args(container["args"]).ddpjobs


def test_a_controller_of_all_namespaces_reads_metrics_in_those_of_the_platform_alone(helm: Helm) -> None:
    assert "pods/proxy" not in {right.resource for right in controller_rights()}
    roles = [item for item in of_its_jobs(helm) if item["kind"] == "Role"]
    rights = [right for item in roles for right in granted(item, item["metadata"]["namespace"])]
    assert rights == [Right("get", "", "pods/proxy", "training")]


def test_a_controller_of_some_namespaces_has_rights_on_pods_and_jobs_there_alone(helm: Helm) -> None:
    places = ["a", "b"]
    found = made(helm, namespaces=places, ddpJobs=False)
    rights = granted(found["ClusterRole"], EVERYWHERE) | granted(found["Role"], OWN)
    assert {right.kind for right in rights if right.where == EVERYWHERE} & {("", "pods"), ("batch", "jobs")} == set()
    *_, binding = of_its_jobs(helm, *places)
    roles = [item for item in of_its_jobs(helm, *places) if item["kind"] == "Role"]
    for role in roles:
        rights |= granted(role, role["metadata"]["namespace"])
    assert [item["metadata"]["namespace"] for item in roles] == places
    assert rights == set(controller_rights(places))
    assert (binding["roleRef"]["name"], binding["metadata"]["namespace"]) == ("ddp-controller-jobs", "b")
    assert binding["subjects"] == found["RoleBinding"]["subjects"]


def test_its_pod_passes_pod_security_restricted_and_its_arguments_are_flags_of_the_program(helm: Helm) -> None:
    template = made(helm, namespaces=["a", "b"], taints=["example.com/repair"])["Deployment"]["spec"]["template"]
    assert beyond_restricted(template["spec"]) == []
    [container] = template["spec"]["containers"]
    given = _parser().parse_args(container["args"])
    assert (given.only_namespace, given.taint) == (["a", "b"], ["example.com/repair"])
    assert (given.settle, given.patience, given.cooldown) == (10, 120, 3)
    assert given.port == container["ports"][0]["containerPort"]


def test_preflight_finds_its_pods_and_the_reason_of_their_end(helm: Helm) -> None:
    template = made(helm)["Deployment"]["spec"]["template"]
    labels = dict(item.split("=") for item in CONTROLLER_SELECTOR.split(","))
    assert labels.items() <= template["metadata"]["labels"].items()
    assert template["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
