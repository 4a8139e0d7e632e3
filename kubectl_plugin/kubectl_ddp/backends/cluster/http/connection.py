"""Selection of the API server, the user and the namespace by kubectl's rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kubectl_ddp.backends.access import Access, check_kubeconfig, kubeconfig_files
from kubectl_ddp.backends.cluster.http.credentials import (
    headers_of,
    impersonation_headers,
    merge_headers,
    needs_auth_plugin,
)
from kubectl_ddp.backends.cluster.http.http1_client import Wire
from kubectl_ddp.backends.cluster.http.kubeconfig import Context, read_context
from kubectl_ddp.backends.cluster.http.transport import create_http_clients
from kubectl_ddp.errors import Unreachable, UsageError

if TYPE_CHECKING:
    import urllib3

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER: Final = "in-cluster"
"""Name of the context for the service account of a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Connection to one API server."""

    where: str
    """Name of the context."""
    server: str
    """URL of the API server, without a trailing slash."""
    namespace: str
    """Namespace of objects without one."""
    pools: Callable[[], urllib3.PoolManager]
    """Returns the connection pool with the cluster's certificates and proxy; the same at each call."""
    wire: Wire | None = None
    """Connections for plain reads; ``None`` if all requests use the pool."""
    authorization: Callable[[], Mapping[str, str]]
    """Returns the authentication headers. Called for every request, because tokens expire."""
    request_seconds: float | None = None
    """Timeout of one request in seconds; 0 disables it, ``None`` selects the default."""

    @property
    def pool(self) -> urllib3.PoolManager:
        """Connection pool for all kinds of requests."""
        return self.pools()


def connect(
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    namespace: str | None = None,
    acting_as: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """Return the connection for kubectl's most common flags. :func:`connection_to` accepts all of them."""
    access = Access(context=context, kubeconfig=kubeconfig, namespace=namespace, acting_as=acting_as)
    return connection_to(access, environ)


def connection_to(access: Access, environ: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection that kubectl's flags and rules select.

    Cluster: ``--kubeconfig``, else ``$KUBECONFIG``, else ``~/.kube/config``, else the service account of the current
    pod. Namespace: ``--namespace``, else that of the context, else ``default``.

    Raises:
        UsageError: If a context, a cluster, a user or a file does not exist.
        Unreachable: If no cluster is configured.
    """
    files = _files(access.kubeconfig, environ)
    if files:
        chosen = read_context(files, access.context, cluster=access.cluster, user=access.user)
    elif "KUBERNETES_SERVICE_HOST" in environ and (SERVICE_ACCOUNT / "token").is_file():
        chosen = _service_account(environ)
    else:
        check_kubeconfig(environ)
        raise Unreachable(
            "No cluster is configured: there is no kubeconfig.",
            hint="Name one with --kubeconfig or KUBECONFIG, or run on this machine with --local.",
        )
    asked = {"as": access.acting_as, "as-groups": list(access.as_groups)}
    impersonation = impersonation_headers({**chosen.user, **{key: value for key, value in asked.items() if value}})
    if needs_auth_plugin(chosen.user):
        from kubectl_ddp.backends.cluster.http.auth_provider import connection_of  # noqa: PLC0415 - takes 0.3 s

        wire, (pools, authorization) = None, connection_of(files, chosen)
    else:
        (wire, pools), authorization = (
            create_http_clients(chosen.cluster, chosen.user, environ),
            headers_of(chosen.user),
        )
    return Connection(
        where=chosen.name,
        server=str(chosen.cluster["server"]).rstrip("/"),
        namespace=access.namespace or chosen.namespace or "default",
        pools=pools,
        wire=wire,
        authorization=lambda: merge_headers(authorization(), impersonation),
        request_seconds=access.request_seconds,
    )


def _files(kubeconfig: str | None, environ: Mapping[str, str]) -> str:
    """Return the kubeconfig files to read, joined as in ``$KUBECONFIG``; empty if none exists."""
    if kubeconfig is None:
        return os.pathsep.join(map(str, kubeconfig_files(environ)))
    if not Path(kubeconfig).is_file():
        raise UsageError(f"The kubeconfig '{kubeconfig}' does not exist.", hint="Give another file to --kubeconfig.")
    return kubeconfig


def _service_account(environ: Mapping[str, str]) -> Context:
    """Return the context of the service account of the current pod."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""
    return Context(
        name=IN_CLUSTER,
        namespace=namespace,
        cluster={
            "server": f"https://{f'[{host}]' if ':' in host else host}:{port}",
            "certificate-authority": str(SERVICE_ACCOUNT / "ca.crt"),
        },
        user={"tokenFile": str(SERVICE_ACCOUNT / "token")},
    )
