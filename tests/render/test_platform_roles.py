"""The ClusterRoles of the platform: as the table of rights has them, no wider, and part of Kubernetes' own roles."""

from __future__ import annotations

from typing import Any

from kubectl_ddp.rbac.rights import REACHING, SECTIONS, rules
from tests.support.helm import PLATFORM, Helm
from tools.docs.platform_roles import ROLES, Role, check_role_coverage

INTO = "rbac.authorization.k8s.io/aggregate-to-"


def rendered(helm: Helm, **values: Any) -> dict[str, dict[str, Any]]:
    found = helm.template(PLATFORM, {"roles": values, "controller": {"enabled": False}})
    return {item["metadata"]["name"]: item for item in found if item["kind"] == "ClusterRole"}


def aggregated(helm: Helm, **values: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, item in rendered(helm, **values).items():
        for key, value in item["metadata"]["labels"].items():
            if key.startswith(INTO) and value == "true":
                found.setdefault(name, []).append(key.removeprefix(INTO))
    return found


def role(name: str) -> Role:
    [found] = [item for item in ROLES if item.name == name]
    return found


def test_the_chart_has_the_roles_of_the_table(helm: Helm) -> None:
    assert {name: item["rules"] for name, item in rendered(helm).items()} == {
        entry.name: rules(entry.permissions()) for entry in ROLES
    }


def test_kubernetes_own_roles_have_those_that_open_no_pod(helm: Helm) -> None:
    submitting = {"ddp-view": ["view"], "ddp-submit": ["edit"], "ddp-submit-objects": ["edit"]}
    assert aggregated(helm) == submitting
    assert aggregated(helm, aggregate=False) == {}
    more = aggregated(helm, aggregateMetrics=True, aggregateDebug=True)
    assert more == {**submitting, "ddp-metrics": ["view"], "ddp-debug": ["edit"]}
    assert rendered(helm, enabled=False) == {}


def test_everybody_may_know_the_api_servers_addresses_unless_told_otherwise(helm: Helm) -> None:
    def made(**values: Any) -> list[Any]:
        found = [item for item in helm.template(PLATFORM, {"roles": values}) if item["kind"] in {"Role", "RoleBinding"}]
        return [item for item in found if item["metadata"]["namespace"] == "default"]

    [granted, bound] = made()
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
    assert granted["rules"] == [{**slices, "resourceNames": ["kubernetes"], "verbs": ["get"]}]
    assert bound["subjects"][0]["name"] == "system:authenticated"
    assert made(apiServer=False) == made(enabled=False) == []


def test_no_role_has_a_wildcard_reads_a_secret_or_has_a_way_to_more_rights() -> None:
    for item in ROLES:
        for rule in rules(item.permissions()):
            assert "*" not in {*rule["verbs"], *rule["apiGroups"], *rule["resources"]}
            assert not {"serviceaccounts/token", "roles", "rolebindings"} & set(rule["resources"])
            if "secrets" in rule["resources"]:  # that of a run is made, and never read: not even a patch, which answers
                assert (item.name, rule["resources"], rule["verbs"]) == ("ddp-submit-objects", ["secrets"], ["create"])
            assert not {"impersonate", "escalate", "bind"} & set(rule["verbs"])


def test_every_command_has_a_role_that_is_enough() -> None:
    alone = {"ddp-view": SECTIONS["see"], "ddp-submit": ("submit", "preflight", "clone", *SECTIONS["change"])}
    for name, commands in alone.items():
        for command in commands:
            assert check_role_coverage(role(name), command)[0], f"{command} with {name}"
    for command in REACHING:
        assert check_role_coverage(role("ddp-debug"), command)[0]
        assert not check_role_coverage(role("ddp-submit"), command)[0]
    assert check_role_coverage(role("ddp-cluster-view"), "capacity")[0]
