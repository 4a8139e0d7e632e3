"""Errors for servers that cannot be reached."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from kubectl_ddp.backends.cluster.http.api_errors import Call
from kubectl_ddp.errors import Unreachable

REASONS: tuple[tuple[type[Exception], str, str], ...] = (
    (ProxyError, "the proxy on the way to it fails ({cause})", "Check HTTPS_PROXY and NO_PROXY."),
    (
        ssl.SSLCertVerificationError,
        "its certificate is not trusted ({cause})",
        "Check certificate-authority in the kubeconfig.",
    ),
    (
        SSLError,
        "the TLS handshake fails ({cause})",
        "Check address and port in the kubeconfig, and for a proxy or firewall in between.",
    ),
    (NameResolutionError, "the name '{host}' is not known", "Check the address in the kubeconfig, and the VPN."),
    (
        NewConnectionError,
        "{cause}",
        "Check that the cluster is up, or choose another with --context; --local needs none.",
    ),
    (ConnectTimeoutError, "it does not answer", "Check the network, the VPN and the firewall."),
    (
        ReadTimeoutError,
        "it took the request and does not answer",
        "Try again, or wait longer with --request-timeout; the API server may be overloaded.",
    ),
    (
        ProtocolError,
        "it ended the connection before its answer was whole",
        "Try again. If the error persists, check for a proxy or firewall in between.",
    ),
    (HTTPError, "{cause}", "Try again. If the error persists, check for a proxy or firewall in between."),
)
"""Type of the failure or of one of its causes → description, hint. The first matching row is used."""


def connection_error(error: HTTPError, asked: Call) -> Unreachable:
    """Return the error for a server that cannot be reached."""
    reason, hint = next(told for kind, *told in REASONS if any(isinstance(link, kind) for link in _chain(error)))
    words = reason.format(cause=_cause(error), host=urlsplit(asked.server).hostname)
    return Unreachable(
        f"The API server {asked.server} of context '{asked.context}' cannot be reached: {words}.", hint=hint
    )


def _cause(error: BaseException) -> str:
    """Return the operating system's message, such as *connection refused*; else the innermost message."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, OSError) and link.strerror:
            return link.strerror[:1].lower() + link.strerror[1:]
    return " ".join(str(chain[-1]).split()).rstrip(".") or type(chain[-1]).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        nested = [argument for argument in link.args if isinstance(argument, BaseException)]
        link = link.__cause__ or link.__context__ or (nested[0] if nested else None)
