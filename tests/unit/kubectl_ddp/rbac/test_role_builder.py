"""The Roles that a user needs: complete in each namespace, limited to what the commands need, bound to that user."""

from __future__ import annotations

from itertools import product

from kubectl_ddp.rbac.rights import EVERYWHERE, KINDS, NAME, Right, build_roles, required_roles, rules, subject

MISSING = Right.of("create", "jobs.batch")
NODES = Right.of("list", "nodes", EVERYWHERE)
SLICES = Right.of("get", "endpointslices.discovery.k8s.io", "default", ("kubernetes",))


def granted(rules_: list[dict[str, list[str]]]) -> set[tuple[str, ...]]:
    keys = ("verbs", "apiGroups", "resources")
    return {right for rule in rules_ for right in product(*(rule[key] for key in keys))}


def test_a_role_grants_all_that_commands_need_in_the_namespace_so_that_it_takes_none_away_from_an_earlier_one() -> None:
    made = required_roles([MISSING], KINDS, namespace="team", user="ada")
    assert [(item["kind"], item["metadata"]) for item in made] == [
        ("Role", {"name": NAME, "namespace": "team"}),
        ("RoleBinding", {"name": f"{NAME}:ada", "namespace": "team"}),
    ]
    has = granted(made[0]["rules"])
    other = required_roles([Right.of("get", "pods/log")], KINDS, namespace="team", user="bob")
    assert has == granted(other[0]["rules"])
    assert {("create", "batch", "jobs"), ("get", "", "pods/proxy"), ("list", "", "resourcequotas")} <= has


def test_a_role_opens_no_pod_and_shows_no_secret_of_the_namespace() -> None:
    [role, _] = required_roles([MISSING], KINDS, namespace="team", user="ada")
    has = granted(role["rules"])
    pods = {(verb, resource) for verb, group, resource in has if not group and resource.startswith("pods")}
    assert pods == {("get", "pods"), ("list", "pods"), ("watch", "pods"), ("get", "pods/log"), ("get", "pods/proxy")}
    assert {verb for verb, _, resource in has if resource == "secrets"} == {"create"}


def test_each_place_where_something_is_missing_has_a_role_of_its_own() -> None:
    made = required_roles([MISSING, NODES, SLICES], KINDS, namespace="team", user="ada")
    places = [(item["kind"], item["metadata"].get("namespace")) for item in made]
    everywhere = [("ClusterRole", None), ("ClusterRoleBinding", None)]
    assert sorted(places, key=str) == [*everywhere, *product(("Role", "RoleBinding"), ("default", "team"))]
    assert required_roles([], KINDS, namespace="team", user="ada") == []


def test_what_all_jobs_read_in_a_namespace_does_not_take_the_place_of_the_role_for_jobs_there() -> None:
    made = required_roles([MISSING, SLICES], KINDS, namespace="default", user="ada")
    assert len({(item["kind"], item["metadata"]["name"]) for item in made}) == len(made) == 4


def test_what_the_cluster_does_not_serve_is_not_asked_for() -> None:
    [role, _] = required_roles([MISSING], {("batch", "jobs"), ("", "pods")}, namespace="team", user="ada")
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"", "batch"}


def test_resources_with_the_same_verbs_share_a_rule_and_named_objects_have_their_own() -> None:
    config = Right.of("get", "configmaps", "kube-system", ("status",))
    wanted = [Right.of(verb, kind) for kind in ("pods", "services") for verb in ("list", "get")]
    assert rules([*wanted, config]) == [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["status"], "verbs": ["get"]},
    ]


def test_a_binding_names_the_person_and_is_nobody_elses() -> None:
    assert subject("ada") == {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ada"}
    account = "system:serviceaccount:ci:runner"
    assert subject(account) == {"kind": "ServiceAccount", "namespace": "ci", "name": "runner"}
    [_, own] = build_roles([MISSING], namespace="team", user=account)
    assert own["metadata"]["name"] == "kubectl-ddp:system:serviceaccount:ci:runner"
    [_, odd] = build_roles([MISSING], namespace="team", user="https://id.example.com/ada%20l")
    assert odd["metadata"]["name"] == "kubectl-ddp:https:--id.example.com-ada-20l"
    [_, nothing] = build_roles([MISSING], namespace="team", user="")
    assert nothing["subjects"][0]["name"] == "YOU"
