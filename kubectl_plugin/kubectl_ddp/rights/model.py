"""A right, in the words of Kubernetes' access rules, and what needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

OWN: Final = ""
"""In the namespace of the job."""
EVERYWHERE: Final = "*"
"""In all namespaces, or of what stands in none."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource."""

    verb: str
    group: str
    """API group; empty for the core."""
    resource: str
    """Plural, with its subresource, as in ``pods/log``."""
    where: str = OWN
    """:data:`OWN`, :data:`EVERYWHERE`, or the one namespace that is meant."""
    names: tuple[str, ...] = ()
    """The objects that are meant; of a resource all when empty."""

    @classmethod
    def of(cls, verb: str, resource: str, where: str = OWN, names: tuple[str, ...] = ()) -> Self:
        """With the resource as kubectl writes it.

        >>> Right.of("get", "localqueues.visibility.kueue.x-k8s.io/pendingworkloads").resource
        'localqueues/pendingworkloads'
        """
        bare, slash, subresource = resource.partition("/")
        plural, _, group = bare.partition(".")
        return cls(verb, group, f"{plural}{slash}{subresource}", where, names)

    @property
    def kind(self) -> tuple[str, str]:
        """API group and plural, which a cluster serves or does not."""
        return self.group, self.resource.partition("/")[0]

    def __str__(self) -> str:
        """For a sentence.

        >>> str(Right.of("list", "pods", EVERYWHERE)), str(Right.of("create", "jobs.batch"))
        ('list pods in all namespaces', 'create jobs.batch')
        """
        return f"{self.verb} {self.group_resource}{self.place}"

    @property
    def group_resource(self) -> str:
        """The resource as kubectl writes it."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{f'.{self.group}' if self.group else ''}{slash}{subresource}"

    @property
    def place(self) -> str:
        """Words that say where, with a space in front; empty where that goes without saying."""
        if self.where == OWN or self.kind in OF_NO_NAMESPACE:
            return ""
        return " in all namespaces" if self.where == EVERYWHERE else f" in namespace '{self.where}'"


def summarize_permissions(rights: Iterable[Right]) -> str:
    """Many rights in short: those with the same verbs share them.

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
    {("", "nodes"), ("scheduling.k8s.io", "priorityclasses")}
    | {("kueue.x-k8s.io", "clusterqueues"), ("kueue.x-k8s.io", "workloadpriorityclasses")}
)
"""Kinds whose objects stand in no namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A row of the table: what some commands do to some resources."""

    commands: tuple[str, ...]
    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    """As kubectl writes them, as in ``jobs.batch`` and ``pods/log``."""
    where: str = OWN
    names: tuple[str, ...] = ()
    without: str = ""
    """What these commands cannot do without it, as words that follow *without*; empty where they fail."""
    is_broad: bool = False
    """It opens far more than the command is about, so no Role to ask for grants it along with the rest."""

    @property
    def is_required(self) -> bool:
        """Whether the commands fail without it; else their answers are shorter."""
        return not self.without

    def permissions(self) -> Iterator[Right]:
        """One by one."""
        for resource in self.resources:
            for verb in self.verbs:
                yield Right.of(verb, resource, self.where, self.names)
