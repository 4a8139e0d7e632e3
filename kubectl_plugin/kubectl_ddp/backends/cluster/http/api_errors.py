"""Mapping of the API server's error responses and of failed connections to errors with a sentence and a hint.

An error response carries a ``Status`` object as JSON. Its message and causes are included in the sentence, because they
contain the reasons of admission policies and quotas.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final
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

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound, PreflightFailed, Unreachable, UsageError


class Expired(DdpError):
    """The resource version is too old for a watch. The list must be read again."""


class Conflict(DdpError):
    """The object changed between reading and changing it."""


class NotServed(PreflightFailed):
    """The API server does not serve this kind of object."""


class PolicyDenied(Forbidden):
    """A ValidatingAdmissionPolicy rejects the object. Further permissions would not help."""

    def __init__(self, target: str, policy: str, message: str) -> None:
        super().__init__(f"The policy '{policy}' refuses {target}: {message}.")
        self.policy = policy
        self.policy_message = message
        """Message of the policy without its final period: the field, and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Request to the API server, in the terms of its access rules."""

    server: str
    """URL of the API server."""
    context: str
    """Name of the context."""
    verb: str
    """``get``, ``list``, ``create`` …"""
    resource: str
    """``pods``, ``pods/log``, ``pytorchjobs.kubeflow.org`` …"""
    namespace: str
    """Namespace; empty for cluster-scoped objects."""
    name: str
    """Name of the object; empty for a collection."""

    @property
    def target(self) -> str:
        """Object or collection, for use in a sentence."""
        return f"{self.resource} '{self.name}'" if self.name else self.resource

    @property
    def place(self) -> str:
        """Namespace, for use in a sentence; empty for all namespaces."""
        return f" in namespace '{self.namespace}'" if self.namespace else ""


VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "GET": ("get", "list"),
    "POST": ("create", "create"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("delete", "deletecollection"),
}
"""HTTP method → verb for one object, verb for a collection."""


def call(method: str, path: str, *, server: str, context: str, watches: bool = False) -> Call:
    """Return the call that corresponds to an HTTP request.

    >>> call("GET", "/api/v1/namespaces/a/pods/p/log", server="", context="").resource
    'pods/log'
    >>> call("PATCH", "/apis/kubeflow.org/v1/namespaces/a/pytorchjobs/j", server="", context="").resource
    'pytorchjobs.kubeflow.org'
    """
    _, root, *parts = path.split("/")
    group = parts.pop(0) if root == "apis" and parts else ""
    parts = parts[1:]  # the version
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    kind, name, subresource = [*parts, "", "", ""][:3]
    resource = ".".join(filter(None, [kind or "resources", group])) + (f"/{subresource}" if subresource else "")
    one, many = VERBS[method]
    verb = "watch" if watches else one if name else many
    pod = name.partition(":")[0]  # the pod in the path of the proxy is POD:PORT
    return Call(server=server, context=context, verb=verb, resource=resource, namespace=namespace, name=pod)


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """One row of the table. The message may use the fields of :class:`Call` and the API server's ``message``."""

    error: type[DdpError]
    message: str
    hint: str = ""


REFUSALS: Final[Mapping[int, ErrorMapping]] = {
    HTTPStatus.BAD_REQUEST: ErrorMapping(DdpError, "The API server cannot {verb} {target}{place}: {message}."),
    HTTPStatus.UNAUTHORIZED: ErrorMapping(
        Forbidden,
        "The API server {server} does not accept the credentials of context '{context}': {message}.",
        "Log in again, or choose another context with --context.",
    ),
    HTTPStatus.FORBIDDEN: ErrorMapping(
        Forbidden,
        "The API server does not let context '{context}' {verb} {target}{place}: {message}.",
        "'kubectl auth can-i --list' lists your permissions. Request the missing one from a cluster administrator.",
    ),
    HTTPStatus.NOT_FOUND: ErrorMapping(NotFound, "There is no {target}{place} of context '{context}'."),
    HTTPStatus.CONFLICT: ErrorMapping(
        Conflict, "{target}{place} was changed by someone else at the same time: {message}.", "Try again."
    ),
    HTTPStatus.GONE: ErrorMapping(Expired, "The resource version of {resource}{place} has expired: {message}."),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ErrorMapping(
        UsageError, "{target} is too large for the API server: {message}."
    ),
    HTTPStatus.UNPROCESSABLE_ENTITY: ErrorMapping(UsageError, "The API server refuses {target}{place}: {message}."),
    HTTPStatus.TOO_MANY_REQUESTS: ErrorMapping(
        Unreachable, "The API server {server} is too busy to {verb} {target}: {message}.", "Try again in a minute."
    ),
}
"""Status code → error. Codes of 500 and above map to :data:`SERVER_ERROR`, others to :data:`UNEXPECTED`."""

ALREADY_EXISTS: Final = ErrorMapping(AlreadyExists, "{target}{place} exists already.")
NO_NAMESPACE: Final = ErrorMapping(
    NotFound, "Namespace '{namespace}' does not exist in the cluster of context '{context}'.", "Choose another with -n."
)
NOT_SERVED: Final = ErrorMapping(NotServed, "The cluster of context '{context}' does not serve {resource}.")
SERVER_ERROR: Final = ErrorMapping(
    Unreachable,
    "The API server {server} failed to {verb} {target}{place}: {message}.",
    "Try again. If the error persists, contact a cluster administrator.",
)
UNEXPECTED: Final = ErrorMapping(
    DdpError, "The API server {server} answered a request to {verb} {target}{place} with {message}."
)

_POLICY: Final = re.compile(
    r"""(?s)(?:"(?P<name>[^"]*)"\ is\ forbidden:\ )?
    ValidatingAdmissionPolicy\ '(?P<policy>[^']*)'\ with\ binding\ '[^']*'\ denied\ request:\ (?P<message>.*)""",
    re.VERBOSE,
)
"""Message of the API server for the denial by a policy; the last group is the policy's own message."""

_FIELDS: Final = ("server", "context", "verb", "resource", "namespace", "target", "place")


def api_error(code: int, body: bytes, request: Call) -> DdpError:
    """Return the error for a response with status ``code``."""
    status = _status(body)
    message = clean_text(_error_message(status, code, body))
    if (denied := _POLICY.search(message)) is not None:
        return _against_policy(denied, request)
    row = SERVER_ERROR if not status and body.startswith(b"{") else _row(code, status)  # a truncated Status
    words = {name: getattr(request, name) for name in _FIELDS}
    sentence = row.message.format(**words, message=message.rstrip("."))
    return row.error(sentence[:1].upper() + sentence[1:], hint=row.hint)


def _against_policy(denied: re.Match[str], request: Call) -> PolicyDenied:
    """Return the error for a denial by a policy. It names the object even if the request was for a collection."""
    named = replace(request, name=request.name or denied["name"] or "")
    return PolicyDenied(f"{named.target}{named.place}", denied["policy"], denied["message"].rstrip("."))


def _row(code: int, status: Mapping[str, Any]) -> ErrorMapping:
    details = status.get("details") or {}
    if code == HTTPStatus.NOT_FOUND and not details.get("name"):
        return NOT_SERVED  # the response for a missing object has its name, for a missing kind none
    if code == HTTPStatus.NOT_FOUND and details.get("kind") == "namespaces":
        return NO_NAMESPACE
    if code == HTTPStatus.CONFLICT and status.get("reason") == "AlreadyExists":
        return ALREADY_EXISTS
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return SERVER_ERROR
    return REFUSALS.get(code, UNEXPECTED)


def _status(body: bytes) -> Mapping[str, Any]:
    """Return the ``Status`` object of a response; empty if another program such as a proxy answered."""
    try:
        status = json.loads(body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _error_message(status: Mapping[str, Any], code: int, body: bytes) -> str:
    """Return the causes if listed, else the message, else the name of the status code; it may quote secrets."""
    causes = (status.get("details") or {}).get("causes") or []
    if causes and code == HTTPStatus.UNPROCESSABLE_ENTITY:
        listed = [f"{cause.get('field', '')}: {cause.get('message', '')}".strip(": ") for cause in causes]
        return "; ".join(dict.fromkeys(listed))
    if status.get("message"):
        return str(status["message"])
    text = " ".join(body[:200].decode(errors="replace").split())
    phrase = HTTPStatus(code).phrase if code in set(HTTPStatus) else "an unknown status"
    return f"{code} {phrase}" + (f" ({text})" if text and not text.startswith("<") else "")


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
        "it accepted the request and does not respond",
        "Try again, or wait longer with --request-timeout; the API server may be overloaded.",
    ),
    (
        ProtocolError,
        "it closed the connection before its response was complete",
        "Try again. If the error persists, check for a proxy or firewall in between.",
    ),
    (HTTPError, "{cause}", "Try again. If the error persists, check for a proxy or firewall in between."),
)
"""Type of the failure or of one of its causes → description, hint. The first matching row is used."""


def connection_error(error: HTTPError, request: Call) -> Unreachable:
    """Return the error for a server that cannot be reached."""
    reason, hint = next(texts for kind, *texts in REASONS if any(isinstance(link, kind) for link in _chain(error)))
    words = reason.format(cause=_cause(error), host=urlsplit(request.server).hostname)
    return Unreachable(
        f"The API server {request.server} of context '{request.context}' cannot be reached: {words}.", hint=hint
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
