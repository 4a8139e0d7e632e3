"""Table of the API requests of each command (``needs.yaml``), the only source of all data about rights.

It is the source of

- the rights that ``doctor`` and ``preflight`` check, and the Role that they request (``role_builder``),
- the table of the documentation (``reference``).

``tests/unit`` runs the commands against a server that records their requests, and compares them with the table. The
table leaves out what every authenticated user may do (``/version``, discovery, self subject reviews).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.engines import ENGINES, RUNTIMES
from kubectl_ddp.kube import ddpjob
from kubectl_ddp.rbac.model import Need, Right
from kubectl_ddp.util.yaml_file import read_yaml

JOBS: Final = tuple(engine.collection for engine in ENGINES.values())
"""Kinds of the job objects, one per engine."""

DDPJOBS: Final = (GROUP, ddpjob.PLURAL)
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
    fields: dict[str, Any] = {key: tuple(_flat(each)) if isinstance(each, list) else each for key, each in row.items()}
    return Need(**fields)


_TABLE: Final = read_yaml(Path(__file__).with_name("needs.yaml"))
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {name: tuple(_flat(each)) for name, each in _TABLE["sections"].items()}
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
    mine = {*made} | root
    all_that_is_made = {Right.of("create", each).kind for each in (*JOBS, *COMPANIONS)}
    found = [
        right
        for need, right in needs(commands=("submit",))
        if need.is_required
        and (right.kind in (root if need.resources == JOBS else mine) or right.kind not in all_that_is_made)
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
