"""Parser of kubeconfig files by kubectl's rules: merges several files, and selects a context with cluster and user.

If several files define the same name, the first takes precedence. Paths are relative to the file that contains them.
The Kubernetes client has a parser, but its import takes 0.3 s, longer than most commands. The import of PyYAML takes
10 ms, so a file in JSON is read without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.nearest import suggest_known

Entry = Mapping[str, Any]

PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Keys of a cluster or a user that contain paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One context, with its cluster and user."""

    name: str
    namespace: str
    """Namespace; empty if the context has none."""
    cluster: Entry
    user: Entry = field(default_factory=dict)
    is_mixed: bool = False
    """True if a flag replaces the cluster or the user of the context."""


def read_context(
    files: str, wanted: str | None = None, *, cluster: str | None = None, user: str | None = None
) -> Context:
    """Return the context ``wanted``, or the current one, from kubeconfig files joined as in ``$KUBECONFIG``.

    Args:
        files: Paths of the files.
        wanted: Name of the context (default: the current one).
        cluster: Cluster that replaces that of the context. With it, the context may be missing.
        user: User that replaces that of the context.

    Raises:
        UsageError: If a file is not a kubeconfig, or if the context, cluster or user does not exist.
    """
    try:
        documents = [_load_file(Path(part)) for part in files.split(os.pathsep)]
        contexts, clusters, users = (_merged(documents, kind) for kind in ("contexts", "clusters", "users"))
        current = next((str(each["current-context"]) for each in documents if each.get("current-context")), "")
        name, chosen = _chosen(contexts, wanted, current, cluster)
        called = cluster or str(chosen.get("cluster"))
        entry = _named("cluster", cluster, clusters) or clusters.get(called) or {}
        _given(str(entry.get("server") or ""), f"the cluster '{called}' of '{name}' has no server")
        person = _named("user", user, users) or users.get(str(chosen.get("user", "")), {})
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"The kubeconfig '{files}' cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    return Context(
        name=name,
        namespace=str(chosen.get("namespace") or ""),
        cluster=entry,
        user=person,
        is_mixed=cluster is not None or user is not None,
    )


def _load_file(path: Path) -> Entry:
    """Return the content of a file, with absolute paths."""
    found = _parse(path.read_bytes())
    if not isinstance(found, dict):
        raise TypeError(f"{path} is not a mapping")
    return {**found, "clusters": list(_entries(found, "cluster", path)), "users": list(_entries(found, "user", path))}


def _parse(content: bytes) -> Any:
    """Return the document in JSON or YAML. Raises ValueError."""
    with suppress(ValueError, RecursionError):
        return json.loads(content)
    import yaml  # noqa: PLC0415 - slow

    from kubectl_ddp.util.yaml_file import parse_yaml  # noqa: PLC0415 - imports yaml

    try:
        return parse_yaml(content)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _entries(document: Entry, kind: str, path: Path) -> Iterator[Entry]:
    for entry in document.get(f"{kind}s") or ():
        found = entry.get(kind) or {}
        files = {key: str(path.parent / found[key]) for key in PATHS if found.get(key)}
        yield {**entry, kind: {**found, **files}}


def _merged(documents: list[Entry], kind: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for document in documents:
        for entry in document.get(kind) or ():
            found.setdefault(str(entry["name"]), entry.get(kind.removesuffix("s")) or {})
    return found


def _given(value: str, otherwise: str) -> str:
    if not value:
        raise ValueError(otherwise)
    return value


def _chosen(contexts: Mapping[str, Entry], wanted: str | None, current: str, cluster: str | None) -> tuple[str, Entry]:
    """Return name and entry of the context. With a cluster and no context, the cluster's name is used."""
    name = wanted or current
    if not name and cluster:
        return cluster, {}
    _given(name, "it has no current-context")
    return name, contexts[name] if name in contexts else _unknown("context", name, contexts, is_current=not wanted)


def _named(kind: str, name: str | None, entries: Mapping[str, Entry]) -> Entry | None:
    """Return the entry that a flag names; ``None`` without the flag. Raises UsageError."""
    if name is None:
        return None
    return entries[name] if name in entries else _unknown(kind, name, entries)


def _unknown(kind: str, name: str, entries: Iterable[str], *, is_current: bool = False) -> Entry:
    names = list(entries)
    raise UsageError(
        f"The kubeconfig names '{name}' as its current context, and has no such context."
        if is_current
        else f"The kubeconfig has no {kind} '{name}'.",
        hint=suggest_known(name, names) if names else "It has none at all.",
    )
