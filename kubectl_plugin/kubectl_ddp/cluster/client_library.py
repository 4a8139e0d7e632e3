"""Credentials that a program or a provider makes, by the Kubernetes client, which knows how to ask for them anew.

The only module that imports ``kubernetes``. What it uses of it is the same in versions 33 to 37: ``Configuration``, the
kubeconfig loader, the pool of ``RESTClientObject``, and ``auth_settings``, which renews tokens that expire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject

from kubectl_ddp.cluster.kubeconfig import Context
from kubectl_ddp.cluster.transport import POOL_SIZE
from kubectl_ddp.errors import UsageError


def connection_of(
    files: str, chosen: Context
) -> tuple[Callable[[], urllib3.PoolManager], Callable[[], Mapping[str, str]]]:
    """Connections for a context, and what makes the headers of each request. Raises UsageError."""
    settings = client.Configuration()
    settings.connection_pool_maxsize = POOL_SIZE
    try:
        if chosen.is_mixed:
            config.load_kube_config_from_dict(
                _minify_kubeconfig(chosen), client_configuration=settings, persist_config=False
            )
        else:  # what is renewed is then written where it was read
            config.load_kube_config(config_file=files, context=chosen.name, client_configuration=settings)
    except (config.ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"The kubeconfig '{files}' cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    if not settings.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the kubeconfig asked for it
    pool = RESTClientObject(settings).pool_manager
    return lambda: pool, lambda: _authorization(settings)


def _minify_kubeconfig(chosen: Context) -> dict[str, Any]:
    """A kubeconfig with nothing in it but this context."""
    name = chosen.name
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": dict(chosen.cluster)}],
        "users": [{"name": name, "user": dict(chosen.user)}],
    }


def _authorization(settings: client.Configuration) -> Mapping[str, str]:
    """Bearer or basic credentials as a header; none where a client certificate speaks for us."""
    return {
        setting["key"]: setting["value"]
        for setting in settings.auth_settings().values()
        if setting["in"] == "header" and setting["value"]
    }
