"""Rights of the user in the cluster, the user's name, and the Role to request if rights are missing.

One request reads the rules of a namespace. A separate request per right follows for other namespaces, and for
authorizers that cannot list their rules, such as those of some clouds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import ddpjob, job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.rbac import rights
from kubectl_ddp.rbac.rights import EVERYWHERE, KINDS, OWN, Right, to_submit
from kubectl_ddp.util.concurrency import map_concurrently

AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
WHO: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def missing_to_submit(api: Api, discovery: Discovery, namespace: str, objects: Sequence[Object]) -> list[Right]:
    """Return the missing rights for creating the objects of a job."""
    engine = job_kinds.engine_of(job_kinds.root_of(list(objects)))
    return missing(api, namespace, to_submit(engine.name, discovery.group_resources(objects)))


def may_submit_ddpjob(api: Api, discovery: Discovery, namespace: str, objects: Sequence[Object]) -> bool:
    """Return whether the user may create, read and delete the job as one DDPJob; false where that is not served."""
    if discovery.resource_for_kind(ddpjob.API_VERSION, ddpjob.KIND) is None:
        return False
    has_code = any(item["kind"] == "ConfigMap" for item in objects)
    made = [f"{ddpjob.PLURAL}.{GROUP}", *(["configmaps"] if has_code else [])]
    verbs = ("create", "get", "delete")
    return not missing(api, namespace, [Right.of(verb, kind) for kind in made for verb in verbs])


def missing(api: Api, namespace: str, wanted: Sequence[Right]) -> list[Right]:
    """Return the rights in ``wanted`` that the API server does not grant. Raises the errors of
    :class:`~kubectl_ddp.backends.cluster.http.api.Api`.
    """
    review = api.create(f"{AUTHORIZATION}/selfsubjectrulesreviews", _review("RulesReview", {"namespace": namespace}))
    rules = review["status"].get("resourceRules") or ()
    lacking = {right for right in wanted if right.where == OWN and not any(_rule_allows(rule, right) for rule in rules)}
    is_whole = not review["status"].get("incomplete")
    open_ = [right for right in wanted if right.where != OWN or (right in lacking and not is_whole)]
    allowed = map_concurrently(lambda right: _may(api, namespace, right), open_)
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
    """Return the name of the user on the API server; empty if it does not report it."""
    try:
        answer = api.create(WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    except DdpError:  # not available before Kubernetes 1.28
        return ""
    return str(answer["status"]["userInfo"].get("username", ""))


def role_request_message(api: Api, discovery: Discovery, namespace: str, lacking: Collection[Right]) -> str:
    """Return a sentence that requests the missing rights, with the Role as YAML below it."""
    found = rights.required_roles(lacking, discovery.filter_served(KINDS), namespace=namespace, user=user(api))
    return f"Ask a cluster administrator to grant this with 'kubectl apply -f -':\n{rights.text(found)}".rstrip()
