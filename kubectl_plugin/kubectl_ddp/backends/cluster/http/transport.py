"""HTTP clients for one API server, with its certificates, those of the client, and the proxy."""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kubectl_ddp.backends.cluster.http.http1_client import Wire
from kubectl_ddp.errors import UsageError

if TYPE_CHECKING:
    import urllib3

POOL_SIZE: Final = 64
"""Maximum number of connections kept: watches, log streams and pod metrics are concurrent."""

OPEN_FILES: Final = "/proc/self/fd"
"""Directory with the open files of the process on Linux."""


def create_http_clients(
    cluster: Mapping[str, Any], user: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> tuple[Wire | None, Callable[[], urllib3.PoolManager]]:
    """Return the client for plain reads, ``None`` behind a proxy, and a function that creates the pool for other
    requests.

    Both use the certificates of the kubeconfig's cluster and user. Raises UsageError for invalid certificates.
    """
    server = str(cluster["server"])
    context = _ssl_context(cluster, user) if server.startswith("https:") else None
    name = str(cluster.get("tls-server-name") or "") or None
    if proxy := str(cluster.get("proxy-url") or _proxy_for(server, environ)):
        pool = _pool(context, name, proxy)
        return None, lambda: pool
    return _wire(server, context, name), cache(lambda: _pool(context, name))


def _wire(server: str, context: ssl.SSLContext | None, name: str | None) -> Wire | None:
    try:
        return Wire(server, context, name)
    except (KeyError, ValueError):  # urllib3 raises the error for an invalid URL
        return None


def _pool(context: ssl.SSLContext | None, name: str | None, proxy: str = "") -> urllib3.PoolManager:
    import urllib3  # noqa: PLC0415 - takes 70 ms, and plain reads do not need it

    settings: dict[str, Any] = {"maxsize": POOL_SIZE}
    if context is not None:
        settings |= {"ssl_context": context} | ({"server_hostname": name} if name else {})
        if not context.check_hostname:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # as configured in the kubeconfig
    if not proxy:
        return urllib3.PoolManager(**settings)
    try:
        return urllib3.ProxyManager(proxy, **settings)
    except urllib3.exceptions.HTTPError as error:
        raise UsageError(
            f"The proxy '{proxy}' cannot be used: {error}.", hint="http:// and https:// proxies are understood."
        ) from error


def _ssl_context(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a TLS context like kubectl's: the system's authorities unless the kubeconfig names one, TLS 1.2 and newer.

    Python 3.13's strict verification is not enabled, because the authorities of many clusters do not meet it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    try:
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif (authority := _content(cluster, "certificate-authority")) is not None:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        else:
            context.load_default_certs()
        certificate, key = _content(user, "client-certificate"), _content(user, "client-key")
        if certificate is not None and key is not None:
            with _as_files(certificate, key) as paths:
                context.load_cert_chain(*paths)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"A certificate of the kubeconfig cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    return context


def _content(entry: Mapping[str, Any], key: str) -> bytes | None:
    """Return the PEM data in ``KEY-data``, or in the file that ``KEY`` names."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(str(entry[f"{key}-data"]), validate=False)
    return Path(entry[key]).read_bytes() if entry.get(key) else None


@contextmanager
def _as_files(*contents: bytes) -> Iterator[list[str]]:
    """Provide the contents as files, from which OpenSSL reads keys: in anonymous memory, or in a private temporary
    folder.
    """
    if sys.platform == "linux" and Path(OPEN_FILES).is_dir():
        with ExitStack() as stack:
            yield [_in_memory(stack, content) for content in contents]
        return
    import tempfile  # noqa: PLC0415 - 2 ms

    with tempfile.TemporaryDirectory(prefix="kubectl-ddp-") as folder:
        paths = [Path(folder) / str(number) for number, _ in enumerate(contents)]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        yield [str(path) for path in paths]


def _in_memory(stack: ExitStack, content: bytes) -> str:
    file = stack.enter_context(os.fdopen(os.memfd_create("kubectl-ddp"), "wb"))
    file.write(content)
    file.flush()
    return f"{OPEN_FILES}/{file.fileno()}"


def _proxy_for(server: str, environ: Mapping[str, str]) -> str:
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
