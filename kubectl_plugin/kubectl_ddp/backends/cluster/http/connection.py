"""Selection of the API server, the user, the namespace and the proxy by kubectl's rules."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from urllib3 import HTTPHeaderDict

from kubectl_ddp.backends.access import Access, check_kubeconfig, kubeconfig_files
from kubectl_ddp.backends.cluster.http.kubeconfig import Context, read_context
from kubectl_ddp.backends.cluster.http.login import Login
from kubectl_ddp.errors import Unreachable, UsageError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER: Final = "in-cluster"
"""Name of the context for the service account of a pod."""

IMPERSONATION: Final = {"as": "Impersonate-User", "as-uid": "Impersonate-Uid", "as-groups": "Impersonate-Group"}
"""Key of a user → header. A list results in one header per entry."""
EXTRA: Final = ("as-user-extra", "Impersonate-Extra-")
"""Key of a map of lists, and prefix of the headers: one header per key of the map and entry."""
IN_HEADER: Final = "!#$&'*+-.^_`|~"
"""Characters allowed in the name of a header besides letters and digits (RFC 9110, token), except ``%``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Connection to one API server."""

    where: str
    """Name of the context."""
    server: str
    """URL of the API server, without a trailing slash."""
    namespace: str
    """Namespace of objects without one."""
    login: Login
    """Credentials and connection pool."""
    request_seconds: float | None = None
    """Timeout of one request in seconds; 0 disables it, ``None`` selects the default."""


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
    server = str(chosen.cluster["server"]).rstrip("/")
    asked = {"as": access.acting_as, "as-groups": list(access.as_groups)}
    return Connection(
        where=chosen.name,
        server=server,
        namespace=access.namespace or chosen.namespace or "default",
        login=Login(
            chosen,
            proxy=str(chosen.cluster.get("proxy-url") or environment_proxy(server, environ)),
            headers=_impersonation({**chosen.user, **{key: value for key, value in asked.items() if value}}),
        ),
        request_seconds=access.request_seconds,
    )


def _impersonation(user: Mapping[str, Any]) -> HTTPHeaderDict:
    """Return the headers that impersonate another user. Raises UsageError for groups without a user."""
    headers = HTTPHeaderDict()
    for key, header in IMPERSONATION.items():
        given = user.get(key) or ()
        for value in [given] if isinstance(given, str) else given:
            headers.add(header, str(value))
    extra, prefix = EXTRA
    for key, values in (user.get(extra) or {}).items():
        for value in values:
            headers.add(f"{prefix}{quote(key, safe=IN_HEADER)}", str(value))
    if headers and not user.get("as"):
        raise UsageError(
            f"{', '.join(headers)} belong to a user who is acted as, and none is named.", hint="Name one with --as."
        )
    return headers


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


def environment_proxy(server: str, environ: Mapping[str, str]) -> str:
    """Return the proxy of the environment for a server, by the rules of Go's programs; empty for none."""
    split = urlsplit(server)
    proxy = next((found for name in _names(f"{split.scheme}_proxy") if (found := environ.get(name))), "")
    exempt = next((found for name in _names("no_proxy") if (found := environ.get(name))), "")
    host = split.hostname or ""
    if not proxy or host == "localhost" or _is_loopback(host):
        return ""
    is_exempt = any(_matches(host, pattern) for word in exempt.split(",") if (pattern := word.strip()))
    return "" if is_exempt else proxy if "://" in proxy else f"http://{proxy}"


def _names(name: str) -> tuple[str, str]:
    return name.upper(), name


def _matches(host: str, pattern: str) -> bool:
    """Return whether a ``NO_PROXY`` entry matches the host: a name and its subdomains, an address, a network, or
    ``*``.
    """
    if pattern == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        name = pattern.partition(":")[0].lstrip(".").lower()
        return host == name or host.endswith(f".{name}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
