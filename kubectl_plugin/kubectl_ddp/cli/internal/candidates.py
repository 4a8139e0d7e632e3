"""Candidates for the completion of command-line words."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ddp_trainer.common.constants import PortName
from kubectl_ddp.backends.access import kubeconfig_files
from kubectl_ddp.backends.local.paths import local_job_names
from kubectl_ddp.backends.select import Where, backend_for, has_kubeconfig
from kubectl_ddp.cli.internal.command import positional_indexes
from kubectl_ddp.cli.internal.job_options import parameter_of
from kubectl_ddp.cli.internal.resource_types import JOB_TYPES
from kubectl_ddp.cli.registry import ALIASES, COMMANDS
from kubectl_ddp.fabrics.registry import AUTO, NONE, fabrics
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.spec.fields import FILE_KEYS
from kubectl_ddp.spec.job_key import Completion, Field
from kubectl_ddp.spec.presets import PRESETS

T = TypeVar("T")

PATIENCE_SECONDS: Final = 2.0
"""Maximum time for one completion that queries a cluster, in seconds."""
MOST_RANKS: Final = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible completion."""

    value: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class CommandArgs:
    """Complete words after the command's name."""

    command: click.Command
    words: tuple[str, ...]

    @property
    def positional_args(self) -> list[str]:
        """Words that are neither flags nor values of flags, without a kind of object in front, as in ``job digits``."""
        words = [self.words[index] for index in positional_indexes(self.command, self.words)]
        arguments = [each.name for each in self.command.params if isinstance(each, click.Argument)]
        has_type = arguments in (["job"], ["jobs"]) and words and words[0].lower() in JOB_TYPES
        return words[1:] if has_type else words

    def where(self) -> Where:
        """Return the place that the flags among these words select."""
        return Where(
            local="--local" in self.words,
            context=self._value("--context"),
            cluster=self._value("--cluster"),
            user=self._value("--user"),
            kubeconfig=self._value("--kubeconfig"),
            namespace=self._value("-n", "--namespace"),
            acting_as=self._value("--as"),
            as_groups=tuple(self._values("--as-group")),
            all_namespaces="-A" in self.words or "--all-namespaces" in self.words,
        )

    def _value(self, *names: str) -> str | None:
        return next(self._values(*names), None)

    def _values(self, *names: str) -> Iterator[str]:
        for word, following in itertools.pairwise([*self.words, ""]):
            head, equals, value = word.partition("=")
            if head in names and (value if equals else following):
                yield value if equals else following


def command_names(unfinished: str) -> list[Candidate]:
    """Return the commands, and their alternative names once a letter of the word is there."""
    names = [Candidate(name, entry.help) for name, entry in COMMANDS.items()]
    return [*names, *(Candidate(alias, f"Same as {name}.") for alias, name in ALIASES.items())] if unfinished else names


def flags(command: click.Command, context: click.Context) -> list[Candidate]:
    """Return the long flags of a command."""
    options = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    return [
        Candidate(max(names, key=len), (option.help or "").partition("\n")[0])
        for option in options
        for names in (option.opts, option.secondary_opts)
        if names
    ]


def values(parameter: click.Parameter, words: CommandArgs) -> list[Candidate]:
    """Return the candidates for the value of a flag or an argument."""
    if isinstance(parameter.type, click.Choice):
        return [Candidate(str(choice)) for choice in parameter.type.choices]
    offer = OFFERS.get(parameter.name or "")
    return list(offer(words)) if offer else []


def _jobs(words: CommandArgs) -> Iterable[Candidate]:
    """Return the names of jobs on this machine and in the cluster, without those already on the command line."""
    where = words.where()
    found: dict[str, str] = {}
    if not where.local and has_kubeconfig():
        found = within(PATIENCE_SECONDS, lambda: _cluster_jobs(where), found)
    if not where.names_a_cluster:
        found |= dict.fromkeys(local_job_names(), "on this machine")
    return [Candidate(name, place) for name, place in found.items() if name not in words.positional_args]


def _cluster_jobs(where: Where) -> dict[str, str]:
    backend = backend_for(dataclasses.replace(where, all_namespaces=False))
    return {snapshot.job["metadata"]["name"]: f"in {backend.where}" for snapshot in backend.jobs()}


def _ranks(words: CommandArgs) -> Iterable[Candidate]:
    named = words.positional_args
    count = within(PATIENCE_SECONDS, lambda: _world(words.where(), named[0]), 0) if named else 0
    numbers = [Candidate(str(rank), "one rank") for rank in range(min(count, MOST_RANKS))]
    return [Candidate("all", "every rank"), Candidate("failed", "ranks that failed"), *numbers]


def _world(where: Where, name: str) -> int:
    """Return the maximum number of ranks of a job."""
    job = backend_for(where, name).job(name).job
    return job_kinds.bounds(job)[1] * job_kinds.processes_per_node(job)


def _pods(words: CommandArgs) -> Iterable[Candidate]:
    """Return the pods of the job, without the job's name as prefix."""
    named = words.positional_args
    found = within(PATIENCE_SECONDS, lambda: _pods_of(words.where(), named[0]), list[str]()) if named else []
    return [Candidate(name) for name in found]


def _pods_of(where: Where, name: str) -> list[str]:
    pods = backend_for(where, name).job(name).pods
    return [str(pod["metadata"]["name"]).removeprefix(f"{name}-") for pod in pods]


def _ports(_words: CommandArgs) -> Iterable[Candidate]:
    return [Candidate(PortName.METRICS, "of every rank's pod"), Candidate(PortName.RENDEZVOUS, "of the store's pod")]


def _config_keys(words: CommandArgs) -> Iterable[Candidate]:
    """Return the keys that may have a default, after ``set`` and ``unset``."""
    from kubectl_ddp.spec.user_config import KEYS, SETTINGS  # noqa: PLC0415 - only for one command

    return [Candidate(key) for key in (*KEYS, *SETTINGS)] if words.positional_args[:1] in (["set"], ["unset"]) else []


def _contexts(words: CommandArgs) -> Iterable[Candidate]:
    return [Candidate(name, namespace) for name, namespace in _namespace_of_context(words).items()]


def _namespaces(words: CommandArgs) -> Iterable[Candidate]:
    """Return the namespaces in the kubeconfig. The cluster is not queried, because few users may list its
    namespaces.
    """
    return [Candidate(name) for name in sorted({"default", *_namespace_of_context(words).values()})]


def _cluster_names(words: CommandArgs) -> Iterable[Candidate]:
    found = _in_kubeconfig(words, "cluster")
    return [Candidate(name, str(entry.get("server") or "")) for name, entry in found.items()]


def _users(words: CommandArgs) -> Iterable[Candidate]:
    return [Candidate(name) for name in _in_kubeconfig(words, "user")]


def _namespace_of_context(words: CommandArgs) -> dict[str, str]:
    found = _in_kubeconfig(words, "context")
    return {name: str(entry.get("namespace") or "default") for name, entry in found.items()}


def _in_kubeconfig(words: CommandArgs, kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the contexts, clusters or users of the kubeconfig. If several files define a name, the first is used."""
    import yaml  # noqa: PLC0415 - not needed to complete commands and flags

    named = words.where().kubeconfig
    found: dict[str, Mapping[str, Any]] = {}
    for file in [Path(named)] if named else kubeconfig_files():
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        for entry in document.get(f"{kind}s") or []:
            found.setdefault(entry["name"], entry.get(kind) or {})
    return found


def _preset_names(words: CommandArgs) -> Iterable[Candidate]:
    """Return the built-in presets and those that the namespace shares."""
    from kubectl_ddp.client.submission.resolved_job import shared_by  # noqa: PLC0415 - rarely needed
    from kubectl_ddp.spec.shared_presets import SharedPresets  # noqa: PLC0415

    place = words.where()
    there = SharedPresets()
    if not place.local and has_kubeconfig():
        there = within(PATIENCE_SECONDS, lambda: shared_by(place), there)
    mine = [Candidate(preset.name, preset.summary) for preset in PRESETS.values()]
    return [*mine, *(Candidate(name, "of this namespace") for name in there.texts)]


def _fabric_names(_words: CommandArgs) -> Iterable[Candidate]:
    chosen = [Candidate(AUTO, "what the job's other words say"), Candidate(NONE, "nothing is added")]
    return [*chosen, *(Candidate(fabric.name, fabric.summary) for fabric in fabrics().values())]


def _profile_names(words: CommandArgs) -> Iterable[Candidate]:
    found = {each.value: each for each in (*_fabric_names(words), *_preset_names(words))}
    return [each for name, each in found.items() if name not in {AUTO, *words.positional_args}]


def _wait_conditions(_words: CommandArgs) -> Iterable[Candidate]:
    return [
        Candidate(goal) for goal in ("complete", "running", "failed", "suspended", "deleted", "step=", "world-size=")
    ]


def _job_keys(_words: CommandArgs) -> Iterable[Candidate]:
    return [Candidate(key, field.help) for key, field in FILE_KEYS.items()]


def _offer(field: Field) -> Callable[[CommandArgs], Iterable[Candidate]] | None:
    """Return the source of values for the flag of a key."""
    if field.choices:
        return lambda _words: map(Candidate, field.choices)
    return {Completion.PRESETS: _preset_names, Completion.FABRICS: _fabric_names}.get(field.completion)


OFFERS: Final[Mapping[str, Callable[[CommandArgs], Iterable[Candidate]]]] = {
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
    **{parameter_of(key): offer for key, field in FILE_KEYS.items() if (offer := _offer(field))},
}
"""Name of a parameter → function that returns the candidates for its value."""


def within(seconds: float, ask: Callable[[], T], otherwise: T) -> T:
    """Return the result of ``ask``, or ``otherwise`` if it fails or takes too long. Its thread is then abandoned."""
    answers: list[T] = []

    def listen() -> None:
        with contextlib.suppress(Exception):  # no candidates from a cluster that does not answer
            answers.append(ask())

    asking = threading.Thread(target=listen, daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else otherwise
