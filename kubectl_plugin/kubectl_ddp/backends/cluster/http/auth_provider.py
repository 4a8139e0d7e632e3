"""Credentials created by a program or a provider, through the Kubernetes client, which renews them.

This is the only module that imports ``kubernetes``. It uses parts that are the same in versions 33 to 37:
``Configuration``, the kubeconfig loader, the pool of ``RESTClientObject``, and ``auth_settings``, which renews expired
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject

from kubectl_ddp.backends.cluster.http.kubeconfig import Context
from kubectl_ddp.backends.cluster.http.transport import POOL_SIZE
from kubectl_ddp.errors import UsageError


def connection_of(
    files: str, chosen: Context
) -> tuple[Callable[[], urllib3.PoolManager], Callable[[], Mapping[str, str]]]:
    """Return a function for the connection pool of a context, and one for the headers of each request. Raises
    UsageError.
    """
    settings = client.Configuration()
    settings.connection_pool_maxsize = POOL_SIZE
    try:
        if chosen.is_mixed:
            config.load_kube_config_from_dict(
                _minify_kubeconfig(chosen), client_configuration=settings, persist_config=False
            )
        else:  # writes renewed credentials to the file they came from
            config.load_kube_config(config_file=files, context=chosen.name, client_configuration=settings)
    except (config.ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"The kubeconfig '{files}' cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    if not settings.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # as configured in the kubeconfig
    pool = RESTClientObject(settings).pool_manager
    return lambda: pool, lambda: _authorization(settings)


def _minify_kubeconfig(chosen: Context) -> dict[str, Any]:
    """Return a kubeconfig with this context only."""
    name = chosen.name
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": dict(chosen.cluster)}],
        "users": [{"name": name, "user": dict(chosen.user)}],
    }


def _authorization(settings: client.Configuration) -> Mapping[str, str]:
    """Return bearer or basic credentials as a header; empty if a client certificate is used."""
    return {
        setting["key"]: setting["value"]
        for setting in settings.auth_settings().values()
        if setting["in"] == "header" and setting["value"]
    }
