"""Words of kubectl for kinds of objects, as in ``get jobs``, ``describe job NAME`` and ``logs pod/NAME``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.process import program

JOB_TYPES: Final = frozenset(
    word for engine in ENGINES.values() for word in (engine.name, engine.plural, engine.resource, engine.collection)
)
"""Words for jobs: singular and plural of each kind that an engine creates, with and without its API group."""
EVERYTHING: Final = "all"
"""kubectl's word for objects of all kinds; here for all jobs."""
_PLURALS: Final = frozenset(word for engine in ENGINES.values() for word in (engine.plural, engine.collection))

_PODS, _NODES, _QUEUES = "status JOB --ranks", "capacity", "capacity"
_BY_RANK: Final = frozenset({"logs", "exec", "port-forward"})
"""Commands that reach the pod of a rank."""
_OTHER_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pod", "pods", "po"), _PODS),
    **dict.fromkeys(("node", "nodes", "no"), _NODES),
    **dict.fromkeys(("queue", "queues", "localqueue", "localqueues", "clusterqueue", "clusterqueues"), _QUEUES),
    **dict.fromkeys(("event", "events", "ev"), "events JOB"),
    **dict.fromkeys(("namespace", "namespaces", "ns"), "list -A"),
}
"""Word for another kind of object → the command that shows such objects."""


def check_type(word: str) -> None:
    """Raise UsageError if a word names a kind of object other than jobs."""
    if command := _OTHER_TYPES.get(word.lower()):
        context = click.get_current_context(silent=True)
        called = context.command.name if context is not None else None
        hint = f"'{program()} {command}' shows them."
        if command == _PODS and called in _BY_RANK:
            hint = f"'{program()} {called} JOB --rank N' takes the pod of a rank."
        raise UsageError(f"'{word}' names no jobs.", hint=f"{hint} Write 'job/{word}' for a job of that name.")


def names_after_type(words: Sequence[str], *, lists: bool, path: str) -> list[str]:
    """Return names of jobs without the word for their kind, as in ``job digits``.

    A single word for one job, such as ``job``, is a name, unless the command lists jobs.

    Args:
        words: Positional words of a command line.
        lists: True if the command shows all jobs without a name.
        path: Program and command, for the error.

    Raises:
        UsageError: If the words name another kind of object, or a command for one job gets a plural alone.
    """
    if not words:
        return []
    kind = words[0].lower()
    check_type(kind)
    if kind == EVERYTHING and lists and len(words) == 1:
        return []
    if kind not in JOB_TYPES:
        return [*words]
    if len(words) > 1 or lists:
        return [*words[1:]]
    if kind in _PLURALS:
        raise UsageError(
            f"'{words[0]}' names no job.", hint=f"Write '{path} NAME'; '{program()} get jobs' lists all names."
        )
    return [*words]
