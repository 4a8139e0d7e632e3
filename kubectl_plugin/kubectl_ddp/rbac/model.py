"""Data model of rights, in the terms of Kubernetes RBAC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

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
    for (what, place), each in verbs.items():
        *first, last = sorted(each)
        shared.setdefault((f"{', '.join(first)} and {last}" if first else last, place), []).append(what)
    return "; ".join(f"{each} {', '.join(resources)}{place}" for (each, place), resources in shared.items())


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
