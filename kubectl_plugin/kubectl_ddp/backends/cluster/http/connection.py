"""Connection to the API server that kubectl's rules select: server, user, namespace, proxy, credentials and TLS.

The Kubernetes client makes credentials and connections; they are reused while they are valid. The client's own roots
are those of certifi, and on Python 3.13 it checks authorities strictly, which those of many clusters do not pass.
kubectl does neither, so the pool gets a TLS context like kubectl's.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.kube_config import KubeConfigLoader
from urllib3 import HTTPHeaderDict

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.backends.access import Access, check_kubeconfig, kubeconfig_files
from kubectl_ddp.backends.cluster.http.kubeconfig import (
    INVALID,
    Context,
    Credential,
    invalid_kubeconfig,
    read_context,
    run_program,
)
from kubectl_ddp.errors import DdpError, Forbidden, Unreachable, UsageError

OIDC: Final = "oidc"
"""The only auth-provider that Kubernetes still has."""
RENEWED_TOKENS: Final = ("id-token", "refresh-token")
"""Keys of its configuration that are renewed."""
POOL_SIZE: Final = 64
"""Maximum number of connections kept: watches, log streams and pod metrics are concurrent."""
FRESH_SECONDS: Final = 60.0
"""Seconds after which a token file is read again. Tokens of service accounts are renewed in the file."""
RETRY_SECONDS: Final = 10.0
"""Seconds after which a login is tried again that failed, or whose credentials the server refuses. The requests of one
command share the outcome.
"""
RENEWED: Final = ("exec", "auth-provider", "tokenFile")
"""Keys of a user whose credentials can be renewed."""
FIXED: Final = ("token", "tokenFile", "username")
"""Keys of a user before which ``exec`` has no effect."""


@dataclass(frozen=True, slots=True)
class Session:
    """Connection pool and headers of one request."""

    pool: urllib3.PoolManager
    """Connection pool with the certificates and the proxy."""
    headers: HTTPHeaderDict
    """Authentication headers."""
    number: int
    """Number of the login."""


class Login:
    """Credentials of a context's user. Threads share them, and one of them renews them."""

    def __init__(
        self,
        context: Context,
        *,
        proxy: str = "",
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a login without starting a program or reading a token.

        Args:
            context: Context with its cluster and user.
            proxy: URL of the proxy; empty for none.
            headers: Headers to send besides those of the credentials.
            clock: Function that returns the Unix time.
        """
        self._context = context
        self._proxy = proxy
        self._headers = headers or {}
        self._clock = clock
        self._lock = threading.Lock()
        self._settings: Configuration | None = None
        self._pool: urllib3.PoolManager | None = None
        self._certificate: tuple[str | None, ...] = ()
        self._expires_at: float | None = None
        self._failure: DdpError | None = None
        self._tried_at = float("-inf")
        """Time of the last login or failure."""
        self._number = 0

    def session(self) -> Session:
        """Return the pool and the headers for the next request.

        Raises:
            UsageError: If the kubeconfig cannot be used.
            Forbidden: If the login gives no credentials.
        """
        with self._lock:
            if self._settings is None or (self._expires_at is not None and self._clock() >= self._expires_at):
                self._settings = self._try_to_log_in()
            assert self._pool is not None  # noqa: S101 - created by the login
            return Session(self._pool, self._headers_of(self._settings), self._number)

    def discard(self, session: Session) -> bool:
        """Discard credentials that the server refused. Returns whether another session has a chance."""
        if not any(self._context.user.get(key) for key in RENEWED):
            return False
        with self._lock:
            if self._settings is None or session.number != self._number:
                return True
            if self._clock() - self._tried_at < RETRY_SECONDS:
                return False
            self._settings = None
            return True

    def _try_to_log_in(self) -> Configuration:
        self._settings = None
        if self._failure is not None and self._clock() - self._tried_at < RETRY_SECONDS:
            raise self._failure
        self._failure = None
        try:
            settings = self._log_in()
        except DdpError as error:
            self._failure = error
            raise
        finally:
            self._tried_at = self._clock()
        self._number += 1
        return settings

    def _log_in(self) -> Configuration:
        """Get credentials, and create a pool if there is none for their client certificate."""
        credential = self._credential()
        certificate = tuple(credential.user.get(f"{key}-data") for key in ("client-certificate", "client-key"))
        with ExitStack() as files:
            # Made only if needed: a pod with a read-only file system has no place for it.
            folder = cache(lambda: Path(files.enter_context(tempfile.TemporaryDirectory(prefix="kubectl-ddp-"))))
            settings = self._load(credential.user, folder)
            if self._pool is None or certificate != self._certificate:
                self._pool, self._certificate = _create_pool(settings), certificate
        self._expires_at = credential.expires_at
        return settings

    def _credential(self) -> Credential:
        user = self._context.user
        provider = (user.get("auth-provider") or {}).get("name", OIDC)
        if provider != OIDC:
            raise UsageError(
                f"The auth-provider '{provider}' of context '{self._context.name}' was removed from Kubernetes.",
                hint="Use the credential plugin (exec) of your cluster's provider.",
            )
        if path := user.get("tokenFile"):
            return Credential({**user, "token": _read_token(Path(path))}, self._clock() + FRESH_SECONDS)
        if user.get("exec") and not any(user.get(key) for key in FIXED):
            made = run_program(user["exec"], self._context.cluster)
            return Credential({**user, "exec": None, **made.user}, made.expires_at)
        return Credential({**user, "exec": None, "password": user.get("password") or ""}, None)

    def _load(self, user: Mapping[str, Any], folder: Callable[[], Path]) -> Configuration:
        """Return the settings of the Kubernetes client for the context with these credentials.

        The client would leave the files that it makes of certificates and keys until Python exits, and beyond if this
        process becomes kubectl. They are needed only until the TLS context exists.
        """
        name = self._context.name
        settings = Configuration()
        with self._provider_errors():
            user, save = self._with_trusted_provider(user)
            entries = {
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "clusters": [{"name": name, "cluster": _data_as_files(self._context.cluster, folder)}],
                "users": [{"name": name, "user": _data_as_files(user, folder)}],
            }
            KubeConfigLoader(entries, name, config_persister=save).load_and_set(settings)
        if user.get("auth-provider") and not settings.auth_settings():
            raise self._provider_error("its id-token is none")
        settings.connection_pool_maxsize = POOL_SIZE
        settings.proxy, settings.no_proxy = self._proxy or None, ""
        if user_of_proxy := urlsplit(self._proxy).netloc.rpartition("@")[0]:
            settings.proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(user_of_proxy))
        return settings

    def _with_trusted_provider(self, user: Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[[], None] | None]:
        """Return the user with the authority of its provider, and a function that saves renewed tokens.

        Without an authority, the Kubernetes client asks anyone at the issuer's address where to send the refresh token.
        """
        provider = user.get("auth-provider")
        if not provider:
            return user, None
        system = ssl.get_default_verify_paths()
        authority = system.cafile or system.openssl_cafile
        config = {"idp-certificate-authority": authority, **(provider.get("config") or {})}

        def save() -> None:
            provider["config"] |= {key: config[key] for key in RENEWED_TOKENS}
            if self._context.save is not None:
                self._context.save()

        return {**user, "auth-provider": {**provider, "config": config}}, save

    def _headers_of(self, settings: Configuration) -> HTTPHeaderDict:
        """Return the headers for a request. The Kubernetes client renews those of an auth-provider here."""
        with self._provider_errors():
            given = settings.auth_settings().values()
        headers = HTTPHeaderDict({one["key"]: one["value"] for one in given if one["in"] == "header" and one["value"]})
        headers.extend(self._headers)
        return headers

    @contextmanager
    def _provider_errors(self) -> Iterator[None]:
        try:
            yield
        except INVALID as error:
            if self._context.user.get("auth-provider"):
                raise self._provider_error(str(error)) from error
            raise invalid_kubeconfig(self._context.files, error) from error
        except Exception as error:
            raise self._provider_error(str(error)) from error

    def _provider_error(self, reason: str) -> Forbidden:
        return Forbidden(
            f"The auth-provider '{OIDC}' of context '{self._context.name}' failed: "
            f"{clean_text(' '.join(reason.split())).rstrip('.')}.",
            hint="Log in again, or use a credential plugin (exec), such as kubelogin.",
        )


def _data_as_files(entry: Mapping[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
    """Return a cluster or a user without empty keys, and with files instead of certificates and keys."""
    found = {key: value for key, value in entry.items() if value is not None}
    for key in ("certificate-authority", "client-certificate", "client-key"):
        if data := found.pop(f"{key}-data", None):
            path = folder() / key
            path.write_bytes(base64.b64decode(str(data)))
            found[key] = str(path)
    return found


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Forbidden(
            f"The token file '{path}' cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error


def _create_pool(settings: Configuration) -> urllib3.PoolManager:
    context = _tls_context(settings)
    if not settings.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # as configured in the kubeconfig
    try:
        pool: urllib3.PoolManager = RESTClientObject(settings).pool_manager
    except (urllib3.exceptions.HTTPError, ImportError) as error:
        raise UsageError(
            f"The proxy '{settings.proxy}' cannot be used: {error}.",
            hint="http:// and https:// proxies are understood.",
        ) from error
    pool.connection_pool_kw |= {"ssl_context": context, "ca_certs": None, "cert_file": None, "key_file": None}
    return pool


def _tls_context(settings: Configuration) -> ssl.SSLContext:
    """Return a TLS context like kubectl's: the system's authorities unless the kubeconfig names one, from TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif settings.ssl_ca_cert:
            context.load_verify_locations(settings.ssl_ca_cert)
        elif settings.proxy or not settings.host.lower().startswith("http:"):
            context.load_default_certs()
        if settings.cert_file and settings.key_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"A certificate of the kubeconfig cannot be used: {reason}.", hint="See it with 'kubectl config view'."
        ) from error
    return context


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
    impersonated = {"as": access.acting_as, "as-groups": list(access.as_groups)}
    return Connection(
        where=chosen.name,
        server=server,
        namespace=access.namespace or chosen.namespace or "default",
        login=Login(
            chosen,
            proxy=str(chosen.cluster.get("proxy-url") or environment_proxy(server, environ)),
            headers=_impersonation({**chosen.user, **{key: value for key, value in impersonated.items() if value}}),
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
