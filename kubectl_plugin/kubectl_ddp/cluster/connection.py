"""Which API server, as whom, in which namespace: read as kubectl reads it.

The only module that imports ``kubernetes``. What it uses of it is the same in versions 33 to 37: ``Configuration``, the
kubeconfig loaders, the pool of ``RESTClientObject``, and ``auth_settings``, which renews tokens that expire.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject

from kubectl_ddp.errors import Unreachable, UsageError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER: Final = "in-cluster"
"""Name of the context of a pod that speaks for its service account."""

POOL_SIZE: Final = 64
"""Connections kept to the API server: watches, log streams and pod metrics run side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One API server, and how to speak to it."""

    where: str
    """Name of the context."""
    server: str
    """URL of the API server, without a slash at its end."""
    namespace: str
    """Namespace that is meant when an object names none."""
    pool: urllib3.PoolManager
    """Connections with the cluster's certificates and proxy."""
    authorization: Callable[[], Mapping[str, str]]
    """Headers that say who asks; called for every request, since tokens expire."""


def connect(
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    namespace: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """The connection that kubectl's flags and rules mean.

    Cluster: ``kubeconfig``, else ``$KUBECONFIG``, else ``~/.kube/config``, else the service account of the pod we are
    in. Namespace: ``namespace``, else the context's, else ``default``. Raises UsageError for a context or file that is
    not there, Unreachable when no cluster is configured at all.
    """
    files = _files(kubeconfig, environ)
    settings = client.Configuration()
    settings.connection_pool_maxsize = POOL_SIZE
    if files:
        where, default_namespace = _read_kubeconfig(files, context, settings)
    elif "KUBERNETES_SERVICE_HOST" in environ and (SERVICE_ACCOUNT / "token").is_file():
        config.load_incluster_config(client_configuration=settings)
        where, default_namespace = IN_CLUSTER, _service_account_namespace()
    else:
        raise Unreachable(
            "No cluster is configured: there is no kubeconfig.",
            hint="Name one with --kubeconfig or KUBECONFIG, or run on this machine with --local.",
        )
    if not settings.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the kubeconfig asked for it
    return Connection(
        where=where,
        server=settings.host.rstrip("/"),
        namespace=namespace or default_namespace or "default",
        pool=RESTClientObject(settings).pool_manager,
        authorization=lambda: _authorization(settings),
    )


def _files(kubeconfig: str | None, environ: Mapping[str, str]) -> str:
    """The kubeconfig files to read, joined as ``$KUBECONFIG`` joins them; empty when none exists."""
    if kubeconfig is not None:
        if not Path(kubeconfig).is_file():
            raise UsageError(
                f"The kubeconfig '{kubeconfig}' does not exist.", hint="Give another file to --kubeconfig."
            )
        return kubeconfig
    home = Path(environ.get("HOME", "~")).expanduser()
    listed = environ.get("KUBECONFIG") or str(home / ".kube" / "config")
    return os.pathsep.join(part for part in listed.split(os.pathsep) if part and Path(part).is_file())


def _read_kubeconfig(files: str, context: str | None, settings: client.Configuration) -> tuple[str, str]:
    """Fill ``settings`` from the files; returns the context's name and its namespace."""
    try:
        contexts, current = config.list_kube_config_contexts(config_file=files)
        chosen = _named(context, contexts) if context is not None else current
        config.load_kube_config(config_file=files, context=chosen["name"], client_configuration=settings)
    except (config.ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"The kubeconfig '{files}' cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    return str(chosen["name"]), str(chosen.get("context", {}).get("namespace") or "")


def _named(context: str, contexts: list[dict[str, Any]]) -> dict[str, Any]:
    for candidate in contexts:
        if candidate["name"] == context:
            return candidate
    names = [str(candidate["name"]) for candidate in contexts]
    close = difflib.get_close_matches(context, names, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(names)}."
    raise UsageError(f"The kubeconfig has no context '{context}'.", hint=hint)


def _service_account_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _authorization(settings: client.Configuration) -> Mapping[str, str]:
    """Bearer or basic credentials as a header; none where a client certificate speaks for us."""
    return {
        setting["key"]: setting["value"]
        for setting in settings.auth_settings().values()
        if setting["in"] == "header" and setting["value"]
    }
