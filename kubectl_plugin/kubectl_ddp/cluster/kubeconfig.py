"""The kubeconfig as kubectl reads it: several files become one, and a context of it names a cluster and a user.

Of files that name the same thing the first counts. Paths are relative to the file that they stand in. The Kubernetes
client could read this, too; it takes 0.3 s to be imported, more than all else that a command does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from kubectl_ddp.errors import UsageError

Entry = Mapping[str, Any]

PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Keys of a cluster or a user that name files."""

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is there: a kubeconfig of many clusters takes long otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One context, with what it names."""

    name: str
    namespace: str
    """Empty where it names none."""
    cluster: Entry
    user: Entry = field(default_factory=dict)


def read_context(files: str, wanted: str | None = None) -> Context:
    """The context ``wanted``, or the current one, of kubeconfig files joined as ``$KUBECONFIG`` joins them.

    Raises UsageError for files that are no kubeconfig, and for a context that is not there.
    """
    try:
        documents = [_document(Path(part)) for part in files.split(os.pathsep)]
        contexts, clusters, users = (_merged(documents, kind) for kind in ("contexts", "clusters", "users"))
        current = next((str(each["current-context"]) for each in documents if each.get("current-context")), "")
        name = wanted if wanted is not None else _given(current, "it has no current-context")
        chosen = contexts[name] if name in contexts else _unknown(name, list(contexts), is_current=wanted is None)
        cluster = clusters.get(str(chosen.get("cluster"))) or {}
        _given(str(cluster.get("server") or ""), f"the cluster '{chosen.get('cluster')}' of '{name}' has no server")
        user = users.get(str(chosen.get("user", "")), {})
    except (yaml.YAMLError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"The kubeconfig '{files}' cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    return Context(name=name, namespace=str(chosen.get("namespace") or ""), cluster=cluster, user=user)


def _document(path: Path) -> Entry:
    """A file's content, its relative paths made whole."""
    found = yaml.load(path.read_bytes(), Loader=LOADER)  # noqa: S506 - both are safe loaders
    if not isinstance(found, dict):
        raise TypeError(f"{path} is no mapping")
    return {**found, "clusters": list(_entries(found, "cluster", path)), "users": list(_entries(found, "user", path))}


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


def _unknown(context: str, names: list[str], *, is_current: bool) -> Entry:
    import difflib  # noqa: PLC0415 - needed on this error alone

    close = difflib.get_close_matches(context, names, n=1)
    there = f"There are: {', '.join(names)}." if names else "It has none at all."
    word = "its current context" if is_current else "context"
    raise UsageError(
        f"The kubeconfig has no context '{context}'."
        if not is_current
        else f"The kubeconfig names '{context}' as {word}, and has no such context.",
        hint=f"Did you mean '{close[0]}'?" if close else there,
    )
