"""What a person may do, of that which is wanted; who the person is; and the Roles to ask for where a right is missing.

One question tells what is granted in a namespace. What is wanted elsewhere is asked about by itself, and so is all that
it leaves open where an authorizer cannot list what it grants, such as a cloud's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.resources import Discovery
from kubectl_ddp.errors import DdpError
from kubectl_ddp.parallel import each
from kubectl_ddp.rights import role_builder
from kubectl_ddp.rights.model import EVERYWHERE, OWN, Right
from kubectl_ddp.rights.table import KINDS, to_submit

AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
WHO: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def missing_to_submit(api: Api, discovery: Discovery, namespace: str, objects: Sequence[Object]) -> list[Right]:
    """What is not granted of that which creating these objects, a job, takes."""
    root = roots.kind_of(roots.root_of(list(objects))) or roots.PYTORCHJOB
    return missing(api, namespace, to_submit(root.engine, discovery.group_resources(objects)))


def missing(api: Api, namespace: str, wanted: Sequence[Right]) -> list[Right]:
    """Those of ``wanted`` that the API server does not grant. Raises what it answers otherwise."""
    review = api.create(f"{AUTHORIZATION}/selfsubjectrulesreviews", _review("RulesReview", {"namespace": namespace}))
    rules = review["status"].get("resourceRules") or ()
    lacking = {right for right in wanted if right.where == OWN and not any(_rule_allows(rule, right) for rule in rules)}
    is_whole = not review["status"].get("incomplete")
    open_ = [right for right in wanted if right.where != OWN or (right in lacking and not is_whole)]
    allowed = each(lambda right: _may(api, namespace, right), open_)
    granted = {right for right, may in zip(open_, allowed, strict=True) if may}
    return [right for right in wanted if right not in granted and (right in lacking or right.where != OWN)]


def _review(kind: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": f"SelfSubject{kind}", "spec": dict(spec)}


def _rule_allows(rule: Mapping[str, Any], right: Right) -> bool:
    if rule.get("resourceNames"):
        return False
    plural, slash, subresource = right.resource.partition("/")
    resources = {right.resource, "*", f"*/{subresource}" if slash else plural}
    asked = (("verbs", {right.verb, "*"}), ("apiGroups", {right.group, "*"}), ("resources", resources))
    return all(words & set(rule.get(field) or ()) for field, words in asked)


def _may(api: Api, namespace: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "namespace": {OWN: namespace, EVERYWHERE: ""}.get(right.where, right.where),
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.names[0] if right.names else "",
    }
    spec = {"resourceAttributes": {name: value for name, value in attributes.items() if value}}
    answer = api.create(f"{AUTHORIZATION}/selfsubjectaccessreviews", _review("AccessReview", spec))
    return bool(answer["status"].get("allowed"))


def user(api: Api) -> str:
    """Who we are to the API server; empty where it does not say."""
    try:
        answer = api.create(WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    except DdpError:  # before Kubernetes 1.28 nobody can ask
        return ""
    return str(answer["status"]["userInfo"].get("username", ""))


def role_request_message(api: Api, discovery: Discovery, namespace: str, lacking: Collection[Right]) -> str:
    """The Role to ask for, in a sentence and as YAML below it."""
    found = role_builder.required_roles(lacking, discovery.filter_served(KINDS), namespace=namespace, user=user(api))
    return f"Ask whoever runs the cluster for this, with 'kubectl apply -f -':\n{role_builder.text(found)}".rstrip()
