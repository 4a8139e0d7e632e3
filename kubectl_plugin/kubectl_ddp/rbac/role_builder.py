"""Roles and bindings that grant rights, as objects and as text for a cluster administrator.

A Role contains everything that the commands need in its namespace, not only what is missing. Applying it again must not
remove rights granted by an earlier Role of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.rbac.model import EVERYWHERE, OWN, Right
from kubectl_ddp.rbac.table import Kind, needs

NAME: Final = "kubectl-ddp"
OUTSIDE: Final = "kubectl-ddp-outside"
"""Name of the Role in a namespace that holds objects read by all jobs; a job's own namespace uses :data:`NAME`."""
GROUP: Final = "rbac.authorization.k8s.io"


def required_roles(missing: Collection[Right], served: Collection[Kind], *, namespace: str, user: str) -> list[Object]:
    """Return the Roles and bindings for each namespace with a missing right; empty if none is missing.

    Args:
        missing: Rights that are not granted.
        served: Kinds that the cluster serves.
        namespace: Namespace of the jobs.
        user: Name of the person for the API server; empty for a placeholder.
    """
    places = {right.where for right in missing}
    whole = [right for need, right in needs(served) if right.where in places and not need.is_broad]
    return build_roles(whole, namespace=namespace, user=user)


def build_roles(rights: Iterable[Right], *, namespace: str, user: str) -> list[Object]:
    """Return a Role for each namespace and a ClusterRole, where there are rights, each with its binding to a user."""
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
    name = f"{about['name']}:{who}".replace("/", "-").replace("%", "-")  # one binding per person
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
    """Return the rules of a Role; resources of a group with the same verbs share a rule."""
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
    """Return the subject of a RoleBinding for a user or a service account."""
    parts = user.split(":")
    if user.startswith("system:serviceaccount:") and len(parts) == 4:
        return {"kind": "ServiceAccount", "namespace": parts[2], "name": parts[3]}
    return {"kind": "User", "apiGroup": GROUP, "name": user}


def text(objects: Sequence[Object]) -> str:
    """Return objects as compact YAML with one line per rule."""
    return "---\n".join("".join(_lines(item)) for item in objects)


def _lines(item: Object) -> Iterable[str]:
    for key, value in item.items():
        if isinstance(value, list):
            yield f"{key}:\n"
            yield from (f"- {json.dumps(each)}\n" for each in value)
        else:
            yield f"{key}: {value if isinstance(value, str) else json.dumps(value)}\n"
