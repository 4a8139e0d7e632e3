"""What a person may do in a namespace, of that which a submission takes: everything that is missing at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.parallel import each
from kubectl_ddp.cluster.resources import Discovery
from kubectl_ddp.errors import DdpError

AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
WHO: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ROLE: Final = "ddp-submit"
DAILY: Final = "get,list,watch,create,patch,delete"
"""Verbs of the Role to ask for."""
SEEN: Final = ("pods", "pods/log", "events")
"""What the other commands read besides."""

VERBS_OF_ROOT: Final = ("create", "get", "patch", "delete")
VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "Job": ("create", "patch"),
    "TrainingRuntime": ("create", "get", "patch"),
}
"""What a submission does to what comes with the root; the rest is created, and nothing else."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one kind of object."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.where}"

    @property
    def where(self) -> str:
        """The resource as kubectl writes it, as in ``jobs.batch``."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


def needed(objects: Iterable[Object], discovery: Discovery) -> list[Right]:
    """What submitting these objects takes, kinds that the cluster does not serve left out."""
    found = []
    for item in objects:
        verbs = VERBS_OF_ROOT if roots.kind_of(item) else VERBS.get(item["kind"], ("create",))
        group = item["apiVersion"].rpartition("/")[0]
        if (plural := discovery.plural(item)) is not None:
            found += [Right(verb, group, plural) for verb in verbs]
    return list(dict.fromkeys([*found, Right("list", "", "pods")]))


def missing(api: Api, namespace: str, wanted: Sequence[Right]) -> list[Right]:
    """Those of ``wanted`` that the API server does not grant. Raises what it answers otherwise."""
    review = api.create(f"{AUTHORIZATION}/selfsubjectrulesreviews", _review("RulesReview", {"namespace": namespace}))
    rules = review["status"].get("resourceRules") or ()
    open_ = [right for right in wanted if not any(_grants(rule, right) for rule in rules)]
    if not review["status"].get("incomplete"):
        return open_
    return [
        right for right, may in zip(open_, each(lambda one: _may(api, namespace, one), open_), strict=True) if not may
    ]


def _review(kind: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": f"SelfSubject{kind}", "spec": dict(spec)}


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    if rule.get("resourceNames"):
        return False
    asked = (("verbs", right.verb), ("apiGroups", right.group), ("resources", right.resource))
    return all({word, "*"} & set(rule.get(field) or ()) for field, word in asked)


def _may(api: Api, namespace: str, right: Right) -> bool:
    """Asked one by one where an authorizer cannot list what it grants, such as a cloud's own."""
    attributes = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": right.resource}
    answer = api.create(
        f"{AUTHORIZATION}/selfsubjectaccessreviews", _review("AccessReview", {"resourceAttributes": attributes})
    )
    return bool(answer["status"].get("allowed"))


def to_ask_for(api: Api, namespace: str, wanted: Sequence[Right]) -> str:
    """The Role and the RoleBinding with which all of it is allowed, as commands for who may give them."""
    resources = ",".join(dict.fromkeys([*(right.where for right in wanted if right.resource != "pods"), *SEEN]))
    return (
        "Ask whoever runs the cluster for: "
        f"kubectl create role {ROLE} -n {namespace} --verb={DAILY} --resource={resources} && "
        f"kubectl create rolebinding {ROLE} -n {namespace} --role={ROLE} {_me(api)}"
    )


def _me(api: Api) -> str:
    """The flag that names the person."""
    try:
        answer = api.create(WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    except DdpError:  # before Kubernetes 1.28 nobody can ask
        return "--user=YOU"
    name = str(answer["status"]["userInfo"].get("username", "YOU"))
    account = name.removeprefix("system:serviceaccount:")
    return f"--user={name}" if account == name else f"--serviceaccount={account}"
