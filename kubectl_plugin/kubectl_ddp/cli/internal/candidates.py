"""Candidates for the completion of command-line words."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ddp_trainer.common.constants import PortName
from kubectl_ddp.backends.access import kubeconfig_files
from kubectl_ddp.backends.local.directory import local_job_names
from kubectl_ddp.backends.select import Where, backend_for, has_kubeconfig
from kubectl_ddp.cli.internal.command import JOB_TYPES
from kubectl_ddp.cli.internal.job_options import parameter_of
from kubectl_ddp.cli.registry import ALIASES, COMMANDS
from kubectl_ddp.fabrics.catalog import AUTO, NONE, fabrics
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.spec.fields import FILE_KEYS, PRESETS
from kubectl_ddp.spec.job_key import Completion, Field

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 2.0
"""Maximum time for one completion that queries a cluster, in seconds."""
MOST_RANKS: Final = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible completion."""

    value: str
    description: str = ""


def where_of(context: click.Context) -> Where:
    """Return the place that the flags of a command line select."""
    return Where(**{name: context.params[name] for name in Where.__dataclass_fields__ if name in context.params})


def given_arguments(context: click.Context) -> list[str]:
    """Return the words of a command line that are neither flags nor values of flags."""
    arguments = (argument for argument in context.command.params if isinstance(argument, click.Argument))
    values = (context.params[argument.name or ""] for argument in arguments if is_given(argument, context))
    return [word for value in values for word in ((value,) if isinstance(value, str) else value)]


def is_given(parameter: click.Parameter, context: click.Context) -> bool:
    """Return whether a command line has a value for a parameter. The kind in ``job digits`` is not the name."""
    name = parameter.name or ""
    is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    return is_typed and context.params[name] not in JOB_TYPES


def command_names(unfinished: str) -> list[Candidate]:
    """Return the commands, and their alternative names once a letter of the word is there."""
    names = [Candidate(name, entry.help) for name, entry in COMMANDS.items()]
    return [*names, *(Candidate(alias, f"Same as {name}.") for alias, name in ALIASES.items())] if unfinished else names


def flags(command: click.Command, context: click.Context) -> list[Candidate]:
    """Return the long flags of a command."""
    options = [
        option for option in command.get_params(context) if isinstance(option, click.Option) and not option.hidden
    ]
    return [
        Candidate(max(names, key=len), (option.help or "").partition("\n")[0])
        for option in options
        for names in (option.opts, option.secondary_opts)
        if names
    ]


def values(parameter: click.Parameter, context: click.Context) -> list[Candidate]:
    """Return the candidates for the value of a flag or an argument."""
    if isinstance(parameter.type, click.Choice):
        return [Candidate(str(choice)) for choice in parameter.type.choices]
    source = CANDIDATE_SOURCES.get(parameter.name or "")
    return list(source(context)) if source else []


def _jobs(context: click.Context) -> Iterable[Candidate]:
    """Return the names of jobs on this machine and in the cluster, without those already on the command line."""
    where = where_of(context)
    found: dict[str, str] = {}
    if not where.local and has_kubeconfig():
        found = within(TIMEOUT_SECONDS, lambda: _cluster_jobs(where), found)
    if not where.names_a_cluster:
        found |= dict.fromkeys(local_job_names(), "on this machine")
    return [Candidate(name, place) for name, place in found.items() if name not in given_arguments(context)]


def _cluster_jobs(where: Where) -> dict[str, str]:
    backend = backend_for(dataclasses.replace(where, all_namespaces=False))
    return {snapshot.job["metadata"]["name"]: f"in {backend.where}" for snapshot in backend.jobs()}


def _ranks(context: click.Context) -> Iterable[Candidate]:
    named = given_arguments(context)
    count = within(TIMEOUT_SECONDS, lambda: _world(where_of(context), named[0]), 0) if named else 0
    numbers = [Candidate(str(rank), "one rank") for rank in range(min(count, MOST_RANKS))]
    return [Candidate("all", "every rank"), Candidate("failed", "ranks that failed"), *numbers]


def _world(where: Where, name: str) -> int:
    """Return the maximum number of ranks of a job."""
    job = backend_for(where, name).job(name).job
    return job_kinds.bounds(job)[1] * job_kinds.processes_per_node(job)


def _pods(context: click.Context) -> Iterable[Candidate]:
    """Return the pods of the job, without the job's name as prefix."""
    named = given_arguments(context)
    found = within(TIMEOUT_SECONDS, lambda: _pods_of(where_of(context), named[0]), list[str]()) if named else []
    return [Candidate(name) for name in found]


def _pods_of(where: Where, name: str) -> list[str]:
    pods = backend_for(where, name).job(name).pods
    return [str(pod["metadata"]["name"]).removeprefix(f"{name}-") for pod in pods]


def _ports(_context: click.Context) -> Iterable[Candidate]:
    return [Candidate(PortName.METRICS, "of every rank's pod"), Candidate(PortName.RENDEZVOUS, "of the store's pod")]


def _config_keys(context: click.Context) -> Iterable[Candidate]:
    """Return the keys that may have a default, after ``set`` and ``unset``."""
    from kubectl_ddp.spec.external_values import KEYS, SETTINGS  # noqa: PLC0415 - only for one command

    has_key = given_arguments(context)[:1] in (["set"], ["unset"])
    return [Candidate(key) for key in (*KEYS, *SETTINGS)] if has_key else []


def _contexts(context: click.Context) -> Iterable[Candidate]:
    return [Candidate(name, namespace) for name, namespace in _namespace_of_context(context).items()]


def _namespaces(context: click.Context) -> Iterable[Candidate]:
    """Return the namespaces in the kubeconfig. The cluster is not queried, because few users may list its
    namespaces.
    """
    return [Candidate(name) for name in sorted({"default", *_namespace_of_context(context).values()})]


def _cluster_names(context: click.Context) -> Iterable[Candidate]:
    found = _in_kubeconfig(context, "cluster")
    return [Candidate(name, str(entry.get("server") or "")) for name, entry in found.items()]


def _users(context: click.Context) -> Iterable[Candidate]:
    return [Candidate(name) for name in _in_kubeconfig(context, "user")]


def _namespace_of_context(context: click.Context) -> dict[str, str]:
    found = _in_kubeconfig(context, "context")
    return {name: str(entry.get("namespace") or "default") for name, entry in found.items()}


def _in_kubeconfig(context: click.Context, kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the contexts, clusters or users of the kubeconfig. If several files define a name, the first is used."""
    import yaml  # noqa: PLC0415 - not needed to complete commands and flags

    named = where_of(context).kubeconfig
    found: dict[str, Mapping[str, Any]] = {}
    for file in [Path(named)] if named else kubeconfig_files():
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        for entry in document.get(f"{kind}s") or []:
            found.setdefault(entry["name"], entry.get(kind) or {})
    return found


def _preset_names(context: click.Context) -> Iterable[Candidate]:
    """Return the built-in presets and those that the namespace shares."""
    place = where_of(context)
    shared: Iterable[str] = ()
    if not place.local and has_kubeconfig():
        from kubectl_ddp.client.layers import shared_by  # noqa: PLC0415 - imports YAML
        from kubectl_ddp.spec.external_values import SharedPresets  # noqa: PLC0415

        shared = within(TIMEOUT_SECONDS, lambda: shared_by(place), SharedPresets()).texts
    builtin = [Candidate(preset.name, preset.summary) for preset in PRESETS.values()]
    return [*builtin, *(Candidate(name, "of this namespace") for name in shared)]


def _fabric_names(_context: click.Context) -> Iterable[Candidate]:
    chosen = [Candidate(AUTO, "what the job's other words say"), Candidate(NONE, "nothing is added")]
    return [*chosen, *(Candidate(fabric.name, fabric.summary) for fabric in fabrics().values())]


def _profile_names(context: click.Context) -> Iterable[Candidate]:
    found = {candidate.value: candidate for candidate in (*_fabric_names(context), *_preset_names(context))}
    return [candidate for name, candidate in found.items() if name not in {AUTO, *given_arguments(context)}]


def _wait_conditions(_context: click.Context) -> Iterable[Candidate]:
    return [
        Candidate(goal) for goal in ("complete", "running", "failed", "suspended", "deleted", "step=", "world-size=")
    ]


def _job_keys(_context: click.Context) -> Iterable[Candidate]:
    return [Candidate(key, field.help) for key, field in FILE_KEYS.items()]


def _completion_source(field: Field) -> Callable[[click.Context], Iterable[Candidate]] | None:
    """Return the source of values for the flag of a key."""
    if field.choices:
        return lambda _context: map(Candidate, field.choices)
    return {Completion.PRESETS: _preset_names, Completion.FABRICS: _fabric_names}.get(field.completion)


CANDIDATE_SOURCES: Final[Mapping[str, Callable[[click.Context], Iterable[Candidate]]]] = {
    "job": _jobs,
    "jobs": _jobs,
    "rank": _ranks,
    "ranks": _ranks,
    "pod": _pods,
    "ports": _ports,
    "words": _config_keys,
    "context": _contexts,
    "cluster": _cluster_names,
    "user": _users,
    "namespace": _namespaces,
    "key": _job_keys,
    "preset": _profile_names,
    "what": _wait_conditions,
    **{parameter_of(key): offer for key, field in FILE_KEYS.items() if (offer := _completion_source(field))},
}
"""Name of a parameter → function that returns the candidates for its value."""


def within(seconds: float, function: Callable[[], T], otherwise: T) -> T:
    """Return the result of ``function``, or ``otherwise`` if it fails or takes too long. Abandons its thread."""
    results: list[T] = []

    def run() -> None:
        with contextlib.suppress(Exception):  # no candidates from a cluster that does not answer
            results.append(function())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise
