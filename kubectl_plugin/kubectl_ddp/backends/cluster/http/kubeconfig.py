"""Selection of a context, with its cluster and user, by kubectl's rules, from files that the Kubernetes client reads.

If several files define the same name, or a current context, the first takes precedence. Paths are relative to the file
that contains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigMerger

from kubectl_ddp.errors import UsageError, suggest_known

Entry = Mapping[str, Any]

PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Keys of a cluster or a user that contain paths."""

INVALID: Final = (
    ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError,
)  # fmt: skip
"""Errors of the Kubernetes client for a kubeconfig that has another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One context, with its cluster and user."""

    name: str
    namespace: str
    """Namespace; empty if the context has none."""
    cluster: Entry
    user: Entry = field(default_factory=dict)
    files: str = ""
    """Kubeconfig files of the context, joined as in ``$KUBECONFIG``."""
    save: Callable[[], None] | None = None
    """Writes renewed credentials, which are part of ``user``, to the file they came from."""


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
        merger = KubeConfigMerger(files)
        contexts, clusters, users = (_entries(merger, kind) for kind in ("context", "cluster", "user"))
        documents = merger.config_files.values()
        current = next((str(each["current-context"]) for each in documents if each.get("current-context")), "")
        name, chosen = _chosen(contexts, wanted, current, cluster)
        called = cluster or str(chosen.get("cluster"))
        entry = _named("cluster", cluster, clusters) or clusters.get(called) or {}
        _given(str(entry.get("server") or ""), f"the cluster '{called}' of '{name}' has no server")
        person = _named("user", user, users) or users.get(str(chosen.get("user", "")), {})
    except INVALID as error:
        raise invalid_kubeconfig(files, error) from error
    return Context(
        name=name,
        namespace=str(chosen.get("namespace") or ""),
        cluster=entry,
        user=person,
        files=files,
        save=merger.save_changes,
    )


def invalid_kubeconfig(files: str, error: Exception) -> UsageError:
    """Return the error for a kubeconfig that the Kubernetes client cannot use."""
    reason = " ".join(str(error).split()).rstrip(".")
    return UsageError(f"The kubeconfig '{files}' cannot be used: {reason}.", hint="See it with 'kubectl config view'.")


def _entries(merger: KubeConfigMerger, kind: str) -> dict[str, Entry]:
    """Return the entries of a kind by name, with absolute paths."""
    found: dict[str, Entry] = {}
    for node in merger.config.value[f"{kind}s"]:
        entry, folder = node.value.get(kind) or {}, Path(node.path).parent
        files: dict[str, Any] = {key: str(folder / entry[key]) for key in PATHS if entry.get(key)}
        program = entry.get("exec") or {}
        if "/" in str(program.get("command", "")):
            files["exec"] = {**program, "command": str(folder / program["command"])}
        found[str(node.value["name"])] = {**entry, **files}
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
