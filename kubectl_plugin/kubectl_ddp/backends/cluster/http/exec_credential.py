"""Credentials that a program prints, as ``exec`` of a kubeconfig's user requests (client.authentication.k8s.io).

The program is started as kubectl starts it. The Kubernetes client reads its configuration; its own start of the program
takes the terminal from standard output instead of ``interactiveMode``, and drops the program's error.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubernetes.config import ConfigException
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import ConfigNode

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.errors import Forbidden, UsageError
from kubectl_ddp.kube.timestamps import epoch

Entry = Mapping[str, Any]

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
        done = subprocess.run(
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
    said = clean_text((done.stderr or b"").decode(errors="replace"))
    if done.returncode:
        words = " ".join(said.split()).rstrip(".")
        raise Forbidden(
            f"The program '{name}', which the kubeconfig names for credentials, failed with exit code "
            f"{done.returncode}{f': {words}' if words else ''}.",
            hint=_hint(config) or "Log in again with it, or choose another context with --context.",
        )
    if said:
        print(said.rstrip(), file=sys.stderr, flush=True)
    return _credential(name, program.api_version, done.stdout)


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
    configs = [each["extension"] for each in cluster.get("extensions") or () if each["name"] == EXTENSION]
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
