"""Rights of each command: the table of its API requests (``needs.yaml``), and Roles and bindings that grant them.

The table is the only source of all data about rights. Roles are objects, or text for a cluster administrator.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.engines import ENGINES, RUNTIMES
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.yaml_text import read_yaml

OWN: Final = ""
"""Scope: the job's namespace."""
EVERYWHERE: Final = "*"
"""Scope: all namespaces, and cluster-scoped objects."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource."""

    verb: str
    group: str
    """API group; empty for the core group."""
    resource: str
    """Plural name with its subresource, such as ``pods/log``."""
    where: str = OWN
    """:data:`OWN`, :data:`EVERYWHERE`, or the name of a namespace."""
    names: tuple[str, ...] = ()
    """Names of objects; empty for all objects of the resource."""

    @classmethod
    def of(cls, verb: str, resource: str, where: str = OWN, names: tuple[str, ...] = ()) -> Self:
        """Return the right for a resource in kubectl's notation.

        >>> Right.of("get", "localqueues.visibility.kueue.x-k8s.io/pendingworkloads").resource
        'localqueues/pendingworkloads'
        """
        bare, slash, subresource = resource.partition("/")
        plural, _, group = bare.partition(".")
        return cls(verb, group, f"{plural}{slash}{subresource}", where, names)

    @property
    def kind(self) -> tuple[str, str]:
        """API group and plural name; a cluster may or may not serve this kind."""
        return self.group, self.resource.partition("/")[0]

    def __str__(self) -> str:
        """Return the right as words for a sentence.

        >>> str(Right.of("list", "pods", EVERYWHERE)), str(Right.of("create", "jobs.batch"))
        ('list pods in all namespaces', 'create jobs.batch')
        """
        return f"{self.verb} {self.group_resource}{self.place}"

    @property
    def group_resource(self) -> str:
        """Resource in kubectl's notation."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{f'.{self.group}' if self.group else ''}{slash}{subresource}"

    @property
    def place(self) -> str:
        """Description of the scope with a leading space; empty for the job's namespace and for cluster-scoped kinds."""
        if self.where == OWN or self.kind in OF_NO_NAMESPACE:
            return ""
        return " in all namespaces" if self.where == EVERYWHERE else f" in namespace '{self.where}'"


def summarize_permissions(rights: Iterable[Right]) -> str:
    """Return a short description of rights; resources with the same verbs are grouped.

    >>> summarize_permissions([Right.of(verb, kind) for kind in ("pods", "events") for verb in ("list", "get")])
    'get and list pods, events'
    """
    verbs: dict[tuple[str, str], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group_resource, right.place), set()).add(right.verb)
    shared: dict[tuple[str, str], list[str]] = {}
    for (what, place), resources in verbs.items():
        *first, last = sorted(resources)
        shared.setdefault((f"{', '.join(first)} and {last}" if first else last, place), []).append(what)
    return "; ".join(f"{action} {', '.join(resources)}{place}" for (action, place), resources in shared.items())


OF_NO_NAMESPACE: Final = frozenset(
    {("", "nodes"), ("scheduling.k8s.io", "priorityclasses"), ("rbac.authorization.k8s.io", "clusterroles")}
    | {("kueue.x-k8s.io", "clusterqueues"), ("kueue.x-k8s.io", "workloadpriorityclasses")}
)
"""Cluster-scoped kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Row of the table: requests of some commands on some resources."""

    commands: tuple[str, ...]
    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    """Resources in kubectl's notation, such as ``jobs.batch`` and ``pods/log``."""
    where: str = OWN
    names: tuple[str, ...] = ()
    without: str = ""
    """Features that these commands lose without it, as words that follow *without*; empty if they fail."""
    is_broad: bool = False
    """True if it permits far more than the command needs, so no requested Role includes it."""
    is_of_objects: bool = False
    """True if the command needs it only where the controller does not make the objects of jobs."""

    @property
    def is_required(self) -> bool:
        """True if the commands fail without it; otherwise their output is reduced."""
        return not self.without

    def permissions(self) -> Iterator[Right]:
        """Yield each right of the row."""
        for resource in self.resources:
            for verb in self.verbs:
                yield Right.of(verb, resource, self.where, self.names)


JOBS: Final = tuple(engine.collection for engine in ENGINES.values())
"""Kinds of the job objects, one per engine."""

API_SERVERS: Final = Right.of("get", "endpointslices.discovery.k8s.io", "default", ("kubernetes",))
"""Right without which the NetworkPolicy of a job does not admit the API server, which reads metrics."""

DDPJOBS: Final = (GROUP, job_kinds.PLURAL)
"""Kind of which one object is a job."""

COMPANIONS: Final = (
    "services",
    "configmaps",
    "jobs.batch",
    "networkpolicies.networking.k8s.io",
    "podmonitors.monitoring.coreos.com",
    *(f"{plural}.{version.partition('/')[0]}" for version, plural in RUNTIMES.values()),
    "podgroups.scheduling.volcano.sh",
    "podgroups.scheduling.x-k8s.io",
    "podgroups.scheduling.k8s.io",
    "workloads.scheduling.k8s.io",
    "computedomains.resource.nvidia.com",
    "resourceclaimtemplates.resource.k8s.io",
)
"""Objects that may be created with a job; the job and the cluster determine which."""


def _flat(words: Iterable[Any]) -> Iterator[str]:
    """Yield the words of a nested list, and in place of ``JOBS`` and ``COMPANIONS`` the resources they stand for."""
    for word in words:
        match word:
            case "JOBS":
                yield from JOBS
            case "COMPANIONS":
                yield from COMPANIONS
            case str():
                yield word
            case _:
                yield from _flat(word)


def _need(row: Mapping[str, Any]) -> Need:
    fields: dict[str, Any] = {
        key: tuple(_flat(value)) if isinstance(value, list) else value for key, value in row.items()
    }
    return Need(**fields)


_TABLE: Final = read_yaml(Path(__file__).with_name("needs.yaml"))
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(_flat(names)) for name, names in _TABLE["sections"].items()
}
"""Sections of ``kubectl ddp --help`` → their commands that access a cluster."""
REACHING: Final = SECTIONS["reach"]
"""Commands that access the inside of pods."""
NEEDS: Final = tuple(map(_need, _TABLE["needs"]))

Kind = tuple[str, str]
"""Type of a kind: API group and plural."""

KINDS: Final = frozenset(right.kind for need in NEEDS for right in need.permissions())
"""All kinds in the table."""


def needs(served: Collection[Kind] = KINDS, commands: Collection[str] = ()) -> Iterator[tuple[Need, Right]]:
    """Yield each right with its row, for the kinds that a cluster serves; ``commands`` is empty for all commands."""
    for need in NEEDS:
        if not commands or set(commands) & set(need.commands):
            yield from ((need, right) for right in need.permissions() if right.kind in served)


def to_submit(engine: str, made: Iterable[Kind]) -> list[Right]:
    """Return the rights without which submitting fails.

    Args:
        engine: Engine of the job; it determines the kind of the job object.
        made: Kinds of the objects to create, restricted to kinds that the cluster serves.
    """
    root = {(ENGINES[engine].group, ENGINES[engine].plural)}
    made_by_job = {*made} | root
    all_that_is_made = {Right.of("create", resource).kind for resource in (*JOBS, *COMPANIONS)}
    found = [
        right
        for need, right in needs(commands=("submit",))
        if need.is_required
        and (right.kind in (root if need.resources == JOBS else made_by_job) or right.kind not in all_that_is_made)
    ]
    return list(dict.fromkeys(found))


def permissions_to_check(served: Collection[Kind]) -> list[Right]:
    """Return the rights that a checkup tests. Broad rights of optional features are left out, and so are those to make
    the objects of jobs where DDPJobs are served.
    """
    found = (
        right
        for need, right in needs(served)
        if (need.is_required or not need.is_broad) and not (need.is_of_objects and DDPJOBS in served)
    )
    return list(dict.fromkeys(found))


NAME: Final = "kubectl-ddp"
OUTSIDE: Final = "kubectl-ddp-outside"
"""Name of the Role in a namespace that holds objects read by all jobs; a job's own namespace uses :data:`NAME`."""
RBAC_GROUP: Final = "rbac.authorization.k8s.io"


def required_roles(missing: Collection[Right], served: Collection[Kind], *, namespace: str, user: str) -> list[Object]:
    """Return the Roles and bindings for each namespace with a missing right; empty if none is missing.

    Args:
        missing: Rights that are not granted.
        served: Kinds that the cluster serves.
        namespace: Namespace of the jobs.
        user: Name of the person for the API server; empty for a placeholder.
    """
    places = {right.where for right in missing}
    required = [right for need, right in needs(served) if right.where in places and not need.is_broad]
    return build_roles(required, namespace=namespace, user=user)


def build_roles(rights: Iterable[Right], *, namespace: str, user: str) -> list[Object]:
    """Return a Role for each namespace and a ClusterRole, where there are rights, each with its binding to a user."""
    by_place: dict[str, list[Right]] = {}
    for right in rights:
        by_place.setdefault(right.where, []).append(right)
    found: list[Object] = []
    for place, granted in by_place.items():
        metadata = {
            OWN: {"name": NAME, "namespace": namespace},
            EVERYWHERE: {"name": NAME},
        }.get(place, {"name": OUTSIDE, "namespace": place})
        found += _role_and_binding(metadata, granted, user)
    return found


def _role_and_binding(metadata: Mapping[str, str], rights: Sequence[Right], user: str) -> list[Object]:
    kind = "Role" if "namespace" in metadata else "ClusterRole"
    who = user or "YOU"
    name = f"{metadata['name']}:{who}".replace("/", "-").replace("%", "-")  # one binding per person
    return [
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": kind,
            "metadata": {**metadata},
            "rules": rules(rights),
        },
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": f"{kind}Binding",
            "metadata": {**metadata, "name": name},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": kind, "name": metadata["name"]},
            "subjects": [subject(who)],
        },
    ]


def rules(rights: Iterable[Right]) -> list[Object]:
    """Return the rules of a Role; resources of a group with the same verbs share a rule."""
    verbs: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource, right.names), set()).add(right.verb)
    shared: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, resource, names), actions in verbs.items():
        shared.setdefault((group, names, tuple(sorted(actions))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(resources)}
        | ({"resourceNames": list(names)} if names else {})
        | {"verbs": list(actions)}
        for (group, names, actions), resources in sorted(shared.items())
    ]


def subject(user: str) -> Object:
    """Return the subject of a RoleBinding for a user or a service account."""
    parts = user.split(":")
    if user.startswith("system:serviceaccount:") and len(parts) == 4:
        return {"kind": "ServiceAccount", "namespace": parts[2], "name": parts[3]}
    return {"kind": "User", "apiGroup": RBAC_GROUP, "name": user}


def text(objects: Sequence[Object]) -> str:
    """Return objects as compact YAML with one line per rule."""
    return "---\n".join("".join(_lines(item)) for item in objects)


def _lines(item: Object) -> Iterable[str]:
    for key, value in item.items():
        if isinstance(value, list):
            yield f"{key}:\n"
            yield from (f"- {json.dumps(rule)}\n" for rule in value)
        else:
            yield f"{key}: {value if isinstance(value, str) else json.dumps(value)}\n"
