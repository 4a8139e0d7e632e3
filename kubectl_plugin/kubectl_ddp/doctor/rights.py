"""What one must be allowed to do for which command, as a table; and the Role to ask for, where something is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.doctor.model import Look, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource."""

    purpose: str
    """The commands that need it."""
    verb: str
    group: str = ""
    resource: str
    """With its subresource, as in ``pods/log``."""
    is_everywhere: bool = False
    """Of the whole cluster, and not of one namespace."""

    @property
    def is_needed(self) -> bool:
        """Whether a command fails without it; without the others some answers are shorter."""
        return not self.is_everywhere

    def __str__(self) -> str:
        """As in ``list pods``."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


SEE: Final = "list, status, logs, top, wait, why"
RUN: Final = "submit"
CHANGE: Final = "scale, suspend, resume, delete"
EXPLAIN: Final = "why, capacity (nodes, queues)"

_COMPANIONS: Final = (("", "services"), ("", "configmaps"), ("networking.k8s.io", "networkpolicies"), ("batch", "jobs"))


def rights(engines: Iterable[str], *, has_monitors: bool, has_queues: bool) -> list[Right]:
    """Everything that the commands do, on a cluster that serves these engines."""
    return list(dict.fromkeys(_rights(list(engines), has_monitors=has_monitors, has_queues=has_queues)))


def _rights(engines: Sequence[str], *, has_monitors: bool, has_queues: bool) -> Iterator[Right]:
    served = [roots.ROOTS[engine] for engine in engines]
    for root in served:
        yield from _all(SEE, ("get", "list", "watch"), root.group, root.plural)
    yield from _all(SEE, ("list", "watch"), "", "pods")
    yield from _all(SEE, ("list", "watch"), "", "events")
    yield from _all(SEE, ("get",), "", "pods", "pods/log", "pods/proxy")
    for root in served:
        yield from _all(RUN, ("create", "patch"), root.group, root.plural)
        yield from _all(CHANGE, ("patch", "delete"), root.group, root.plural)
    companions = [*_COMPANIONS, *([("monitoring.coreos.com", "podmonitors")] if has_monitors else [])]
    if roots.TRAINJOB.engine in engines:
        companions.append((roots.TRAINJOB.group, "trainingruntimes"))
    for group, resource in companions:
        yield from _all(RUN, ("get", "create", "patch", "delete"), group, resource)
    yield from _all(EXPLAIN, ("list",), "", "persistentvolumeclaims")
    yield from _all(EXPLAIN, ("list",), "", "nodes", "pods", is_everywhere=True)
    if has_queues:
        kueue = ("workloads", "localqueues", "clusterqueues")
        yield from _all(EXPLAIN, ("list",), "kueue.x-k8s.io", *kueue, is_everywhere=True)


def _all(
    purpose: str, verbs: Iterable[str], group: str, *resources: str, is_everywhere: bool = False
) -> Iterator[Right]:
    for resource in resources:
        for verb in verbs:
            yield Right(purpose=purpose, verb=verb, group=group, resource=resource, is_everywhere=is_everywhere)


def judge(missing: Sequence[Right], namespace: str) -> Iterator[Look]:
    """One line for each group of commands."""
    for purpose in (SEE, RUN, CHANGE, EXPLAIN):
        lacks = [right for right in missing if right.purpose == purpose]
        needed = [right for right in lacks if right.is_needed]
        if not lacks:
            yield Look(f"rights: {purpose}", Verdict.OK, f"all granted in namespace '{namespace}'")
            continue
        verdict = Verdict.FAIL if needed and purpose != EXPLAIN else Verdict.WARN
        fix = (
            "Ask for the Role below." if verdict is Verdict.FAIL else "Answers are shorter without; see the Role below."
        )
        yield Look(f"rights: {purpose}", verdict, f"missing: {', '.join(map(str, lacks))}", fix)


def role(missing: Sequence[Right], *, namespace: str, subject: Object) -> list[Object]:
    """The Role and ClusterRole that grant what is missing, each with its binding; empty when nothing is."""
    found: list[Object] = []
    for kind, chosen in (
        ("Role", [right for right in missing if not right.is_everywhere]),
        ("ClusterRole", [right for right in missing if right.is_everywhere]),
    ):
        if chosen:
            found += _granting(kind, chosen, namespace, subject)
    return found


def _granting(kind: str, missing: Sequence[Right], namespace: str, subject: Object) -> list[Object]:
    group, name = "rbac.authorization.k8s.io", "kubectl-ddp"
    about: dict[str, Any] = {"name": name} | ({"namespace": namespace} if kind == "Role" else {})
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in missing:
        known = verbs.setdefault((right.group, right.resource), [])
        known += [] if right.verb in known else [right.verb]
    rules = [
        {"apiGroups": [api], "resources": [resource], "verbs": sorted(each)} for (api, resource), each in verbs.items()
    ]
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": about, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": about,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [subject],
        },
    ]


def subject(user: str) -> Object:
    """Whom a RoleBinding names."""
    parts = user.split(":")
    if user.startswith("system:serviceaccount:") and len(parts) == 4:
        return {"kind": "ServiceAccount", "namespace": parts[2], "name": parts[3]}
    return {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}
