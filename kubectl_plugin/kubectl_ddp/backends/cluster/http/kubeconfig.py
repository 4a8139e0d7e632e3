"""Kubeconfig files: selection of a context by kubectl's rules, and the credentials that its ``exec`` program prints.

The Kubernetes client reads the files. If several define the same name, or a current context, the first takes
precedence. Paths are relative to the file that contains them.

The program (client.authentication.k8s.io) is started as kubectl starts it. The client's own start of the program takes
the terminal from standard output instead of ``interactiveMode``, and drops the program's error.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.config import ConfigException
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import ConfigNode, KubeConfigMerger

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.errors import Forbidden, UsageError, suggest_known
from kubectl_ddp.kube.objects import epoch

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
        configs = merger.config_files.values()
        current = next((str(config["current-context"]) for config in configs if config.get("current-context")), "")
        name, chosen = _chosen(contexts, wanted, current, cluster)
        cluster_name = cluster or str(chosen.get("cluster"))
        cluster_entry = _named("cluster", cluster, clusters) or clusters.get(cluster_name) or {}
        _given(str(cluster_entry.get("server") or ""), f"the cluster '{cluster_name}' of '{name}' has no server")
        user_entry = _named("user", user, users) or users.get(str(chosen.get("user", "")), {})
    except INVALID as error:
        raise invalid_kubeconfig(files, error) from error
    return Context(
        name=name,
        namespace=str(chosen.get("namespace") or ""),
        cluster=cluster_entry,
        user=user_entry,
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


V1: Final = "client.authentication.k8s.io/v1"
VERSIONS: Final = (V1, "client.authentication.k8s.io/v1beta1")
CLUSTER_KEYS: Final = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url",
    "disable-compression",
)  # fmt: skip
"""Keys of a cluster that a program with ``provideClusterInfo`` gets."""
EXTENSION: Final = "client.authentication.k8s.io/exec"
"""Name of the extension of a cluster that contains the configuration for the program."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Credentials for a user of a kubeconfig."""

    user: Entry
    """Token and client certificate, as keys of a user."""
    expires_at: float | None
    """Unix time at which they expire."""


def run_program(config: Entry, cluster: Entry) -> Credential:
    """Start the program of a user's ``exec`` and return its credentials.

    Raises:
        UsageError: If the program is missing, or its configuration is invalid.
        Forbidden: If the program returns no credentials.
    """
    try:
        program = ExecProvider(ConfigNode("exec", config), None)
    except (ConfigException, KeyError, TypeError) as error:
        raise UsageError(f"'exec' of the kubeconfig's user cannot be used: {error}.") from error
    name = str(config["command"])
    interactive = _is_interactive(name, config)
    spec = {"interactive": interactive, **({"cluster": _info(cluster)} if config.get("provideClusterInfo") else {})}
    info = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": spec}
    stderr_is_seen = sys.stderr.isatty()
    try:
        completed = subprocess.run(
            program.args,
            env={**program.env, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if stderr_is_seen else subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = "is not installed" if is_missing else f"cannot be started: {error.strerror}"
        raise UsageError(
            f"The program '{name}', which the kubeconfig names for credentials, {reason}.",
            hint=_hint(config) or "Install the credential plugin of your cluster's provider, or add it to PATH.",
        ) from error
    stderr = clean_text((completed.stderr or b"").decode(errors="replace"))
    if completed.returncode:
        words = " ".join(stderr.split()).rstrip(".")
        raise Forbidden(
            f"The program '{name}', which the kubeconfig names for credentials, failed with exit code "
            f"{completed.returncode}{f': {words}' if words else ''}.",
            hint=_hint(config) or "Log in again with it, or choose another context with --context.",
        )
    if stderr:
        print(stderr.rstrip(), file=sys.stderr, flush=True)
    return _credential(name, program.api_version, completed.stdout)


def _is_interactive(name: str, config: Entry) -> bool:
    """Return whether the program gets the terminal. Raises UsageError."""
    version, mode = config.get("apiVersion"), config.get("interactiveMode")
    if version not in VERSIONS:
        raise UsageError(
            f"The program '{name}', which the kubeconfig names for credentials, is configured for '{version}'.",
            hint=f"Update the kubeconfig; understood are {' and '.join(VERSIONS)}.",
        )
    if mode not in {"Never", "IfAvailable", "Always"} and (mode or version == V1):
        raise UsageError(
            f"interactiveMode of the program '{name}', which the kubeconfig names for credentials, is "
            f"{mode or 'missing'}.",
            hint="Set it to Never, IfAvailable or Always.",
        )
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not has_terminal:
        raise UsageError(
            f"The program '{name}', which the kubeconfig names for credentials, wants a terminal as standard input.",
            hint=_hint(config) or "Run the command in a terminal, or use other credentials here.",
        )
    return mode != "Never" and has_terminal


def _info(cluster: Entry) -> dict[str, Any]:
    """Return the cluster in the form for the program. Raises UsageError."""
    found = {key: cluster[key] for key in CLUSTER_KEYS if cluster.get(key)}
    if (path := cluster.get("certificate-authority")) and "certificate-authority-data" not in found:
        try:
            found["certificate-authority-data"] = base64.b64encode(Path(path).read_bytes()).decode()
        except OSError as error:
            raise UsageError(f"The certificate-authority '{path}' cannot be read: {error.strerror}.") from error
    configs = [entry["extension"] for entry in cluster.get("extensions") or () if entry["name"] == EXTENSION]
    return found | ({"config": configs[0]} if configs else {})


def _hint(config: Entry) -> str:
    return " ".join(clean_text(str(config.get("installHint") or "")).split())


def _credential(name: str, version: str, printed: bytes) -> Credential:
    try:
        return _parse(json.loads(printed), version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Forbidden(
            f"The program '{name}', which the kubeconfig names for credentials, did not print an ExecCredential of "
            f"{version}: {clean_text(reason).rstrip('.')}.",
            hint="Check its version and its arguments in the kubeconfig.",
        ) from error


def _parse(document: Any, version: str) -> Credential:
    """Return the credentials in a document. Raises ValueError, KeyError, TypeError and AttributeError."""
    if document["kind"] != "ExecCredential" or document["apiVersion"] != version:
        raise ValueError(f"it has the version '{document['apiVersion']}' and the kind '{document['kind']}'")
    status = document["status"]
    token, certificate, key = (status.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if bool(certificate) != bool(key):
        raise ValueError("it has only one of clientCertificateData and clientKeyData")
    if not token and not certificate:
        raise ValueError("it has neither a token nor a client certificate")
    expires = status.get("expirationTimestamp")
    if expires and epoch(expires) is None:
        raise ValueError(f"its expirationTimestamp '{expires}' is not a time")
    user = {"token": token} if token else {}
    if certificate:
        pair = {"client-certificate-data": certificate, "client-key-data": key}
        user |= {name: base64.b64encode(pem.encode()).decode() for name, pem in pair.items()}
    return Credential(user, epoch(expires))
