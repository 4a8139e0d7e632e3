"""The Roles and bindings that grant rights, as objects and as text for who may create them.

A Role holds all that the commands need where it stands, not only what is missing: applying it again must not take away
what an earlier one of the same name has granted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.rights.model import EVERYWHERE, OWN, Right
from kubectl_ddp.rights.table import Kind, needs

NAME: Final = "kubectl-ddp"
OUTSIDE: Final = "kubectl-ddp-outside"
"""Of the Role in a namespace that holds what all jobs read there; jobs of its own have the other."""
GROUP: Final = "rbac.authorization.k8s.io"


def required_roles(missing: Collection[Right], served: Collection[Kind], *, namespace: str, user: str) -> list[Object]:
    """The Roles, each with its binding, with which nothing is missing where something is; empty when nothing is.

    Args:
        missing: what is not granted.
        served: the kinds that the cluster has.
        namespace: of the jobs.
        user: as the API server knows the person; a placeholder when empty.
    """
    places = {right.where for right in missing}
    whole = [right for need, right in needs(served) if right.where in places and not need.is_broad]
    return build_roles(whole, namespace=namespace, user=user)


def build_roles(rights: Iterable[Right], *, namespace: str, user: str) -> list[Object]:
    """A Role for each namespace and a ClusterRole, as far as there are rights, each with its binding to a person."""
    by_place: dict[str, list[Right]] = {}
    for right in rights:
        by_place.setdefault(right.where, []).append(right)
    found: list[Object] = []
    for place, mine in by_place.items():
        about = {
            OWN: {"name": NAME, "namespace": namespace},
            EVERYWHERE: {"name": NAME},
        }.get(place, {"name": OUTSIDE, "namespace": place})
        found += _role_and_binding(about, mine, user)
    return found


def _role_and_binding(about: Mapping[str, str], rights: Sequence[Right], user: str) -> list[Object]:
    kind = "Role" if "namespace" in about else "ClusterRole"
    who = user or "YOU"
    name = f"{about['name']}:{who}".replace("/", "-").replace("%", "-")  # else it would take another person's away
    return [
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": {**about},
            "rules": rules(rights),
        },
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": f"{kind}Binding",
            "metadata": {**about, "name": name},
            "roleRef": {"apiGroup": GROUP, "kind": kind, "name": about["name"]},
            "subjects": [subject(who)],
        },
    ]


def rules(rights: Iterable[Right]) -> list[Object]:
    """The rules of a Role: resources of a group that have the same verbs share one."""
    verbs: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource, right.names), set()).add(right.verb)
    shared: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, resource, names), each in verbs.items():
        shared.setdefault((group, names, tuple(sorted(each))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(resources)}
        | ({"resourceNames": list(names)} if names else {})
        | {"verbs": list(each)}
        for (group, names, each), resources in sorted(shared.items())
    ]


def subject(user: str) -> Object:
    """Whom a RoleBinding names."""
    parts = user.split(":")
    if user.startswith("system:serviceaccount:") and len(parts) == 4:
        return {"kind": "ServiceAccount", "namespace": parts[2], "name": parts[3]}
    return {"kind": "User", "apiGroup": GROUP, "name": user}


def text(objects: Sequence[Object]) -> str:
    """Objects as YAML that is short: a line for each rule."""
    return "---\n".join("".join(_lines(item)) for item in objects)


def _lines(item: Object) -> Iterable[str]:
    for key, value in item.items():
        if isinstance(value, list):
            yield f"{key}:\n"
            yield from (f"- {json.dumps(each)}\n" for each in value)
        else:
            yield f"{key}: {value if isinstance(value, str) else json.dumps(value)}\n"
