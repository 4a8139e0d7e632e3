"""What the API server's answers mean, as one table: status code → error, sentence, way out.

A refusal carries a ``Status`` object as JSON; its message and causes are the API server's own words and are passed on,
for admission policies and quotas speak through them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound, PreflightFailed, Unreachable, UsageError


class Expired(DdpError):
    """The resource version is too old to watch from, so the list must be read again."""


class Conflict(DdpError):
    """The object changed between our look at it and our change of it."""


class NotServed(PreflightFailed):
    """The API server does not know this kind of object."""


class AgainstPolicy(Forbidden):
    """A ValidatingAdmissionPolicy of the cluster refuses the object; no permission of the person's would help."""

    def __init__(self, thing: str, policy: str, said: str) -> None:
        super().__init__(f"The policy '{policy}' refuses {thing}: {said}.")
        self.policy = policy
        self.said = said
        """The policy's own sentence, without its dot: the field, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What was asked of the API server, in the words of its access rules."""

    server: str
    """URL of the API server."""
    context: str
    """Name of the context."""
    verb: str
    """``get``, ``list``, ``create`` …"""
    resource: str
    """``pods``, ``pods/log``, ``pytorchjobs.kubeflow.org`` …"""
    namespace: str
    """Empty for what stands in no namespace."""
    name: str
    """Empty where a collection was asked for."""

    @property
    def thing(self) -> str:
        """The object or collection, for a sentence."""
        return f"{self.resource} '{self.name}'" if self.name else self.resource

    @property
    def place(self) -> str:
        """The namespace, for a sentence; all of them when there is none."""
        return f" in namespace '{self.namespace}'" if self.namespace else ""


VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "GET": ("get", "list"),
    "POST": ("create", "create"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("delete", "deletecollection"),
}
"""HTTP method → verb for one object, verb for a collection."""


def call(method: str, path: str, *, server: str, context: str, watches: bool = False) -> Call:
    """The call that an HTTP request is.

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
    pod = name.partition(":")[0]  # the proxy's pods are named POD:PORT
    return Call(server=server, context=context, verb=verb, resource=resource, namespace=namespace, name=pod)


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """One row of the table. The sentence may use the fields of :class:`Call` and ``said``, the API server's words."""

    error: type[DdpError]
    message: str
    hint: str = ""


REFUSALS: Final[Mapping[int, ErrorMapping]] = {
    HTTPStatus.BAD_REQUEST: ErrorMapping(DdpError, "The API server cannot {verb} {thing}{place}: {said}."),
    HTTPStatus.UNAUTHORIZED: ErrorMapping(
        Forbidden,
        "The API server {server} does not accept the credentials of context '{context}': {said}.",
        "Log in again, or choose another context with --context.",
    ),
    HTTPStatus.FORBIDDEN: ErrorMapping(
        Forbidden,
        "The API server does not let context '{context}' {verb} {thing}{place}: {said}.",
        "See what you may do with 'kubectl auth can-i --list', and ask for the permission that is missing.",
    ),
    HTTPStatus.NOT_FOUND: ErrorMapping(NotFound, "There is no {thing}{place} of context '{context}'."),
    HTTPStatus.CONFLICT: ErrorMapping(
        Conflict, "{thing}{place} was changed by someone else at the same time: {said}.", "Try again."
    ),
    HTTPStatus.GONE: ErrorMapping(Expired, "The API server forgot the past of {resource}{place}: {said}."),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ErrorMapping(UsageError, "{thing} is too large for the API server: {said}."),
    HTTPStatus.UNPROCESSABLE_ENTITY: ErrorMapping(UsageError, "The API server refuses {thing}{place}: {said}."),
    HTTPStatus.TOO_MANY_REQUESTS: ErrorMapping(
        Unreachable, "The API server {server} has too much to do to {verb} {thing}: {said}.", "Try again in a minute."
    ),
}
"""Status code → what it means. Codes of 500 and above mean :data:`BROKEN`, others :data:`UNEXPECTED`."""

TAKEN: Final = ErrorMapping(AlreadyExists, "{thing}{place} exists already.")
NO_NAMESPACE: Final = ErrorMapping(
    NotFound, "There is no namespace '{namespace}' in the cluster of context '{context}'.", "Choose another with -n."
)
NOT_SERVED: Final = ErrorMapping(NotServed, "The cluster of context '{context}' does not serve {resource}.")
BROKEN: Final = ErrorMapping(
    Unreachable,
    "The API server {server} failed to {verb} {thing}{place}: {said}.",
    "Try again; if it stays so, tell who runs it.",
)
UNEXPECTED: Final = ErrorMapping(
    DdpError, "The API server {server} answered a request to {verb} {thing}{place} with {said}."
)

_POLICY: Final = re.compile(
    r"""(?s)(?:"(?P<name>[^"]*)"\ is\ forbidden:\ )?
    ValidatingAdmissionPolicy\ '(?P<policy>[^']*)'\ with\ binding\ '[^']*'\ denied\ request:\ (?P<said>.*)""",
    re.VERBOSE,
)
"""How the API server words the denial of a policy; what comes last is the policy's own sentence."""

_FIELDS: Final = ("server", "context", "verb", "resource", "namespace", "thing", "place")


def api_error(code: int, body: bytes, asked: Call) -> DdpError:
    """The error that an answer with status ``code`` is."""
    status = _status(body)
    said = _error_message(status, code, body)
    if (denied := _POLICY.search(said)) is not None:
        return _against_policy(denied, asked)
    row = _row(code, status)
    words = {name: getattr(asked, name) for name in _FIELDS}
    sentence = row.message.format(**words, said=said.rstrip("."))
    return row.error(sentence[:1].upper() + sentence[1:], hint=row.hint)


def _against_policy(denied: re.Match[str], asked: Call) -> AgainstPolicy:
    """Names the object, too, where a collection was asked to take it."""
    named = replace(asked, name=asked.name or denied["name"] or "")
    return AgainstPolicy(f"{named.thing}{named.place}", denied["policy"], denied["said"].rstrip("."))


def _row(code: int, status: Mapping[str, Any]) -> ErrorMapping:
    details = status.get("details") or {}
    if code == HTTPStatus.NOT_FOUND and not details.get("name"):
        return NOT_SERVED  # a missing object is answered with its name, a missing kind without
    if code == HTTPStatus.NOT_FOUND and details.get("kind") == "namespaces":
        return NO_NAMESPACE
    if code == HTTPStatus.CONFLICT and status.get("reason") == "AlreadyExists":
        return TAKEN
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return BROKEN
    return REFUSALS.get(code, UNEXPECTED)


def _status(body: bytes) -> Mapping[str, Any]:
    """The ``Status`` object of an answer; empty when something else answered, such as a proxy on the way."""
    try:
        status = json.loads(body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _error_message(status: Mapping[str, Any], code: int, body: bytes) -> str:
    """The server's words, without secrets of the object that it quotes."""
    return clean_text(_raw_error_message(status, code, body))


def _raw_error_message(status: Mapping[str, Any], code: int, body: bytes) -> str:
    """The causes where it lists them, else its message, else what the code is called."""
    causes = (status.get("details") or {}).get("causes") or []
    if causes and code == HTTPStatus.UNPROCESSABLE_ENTITY:
        listed = [f"{cause.get('field', '')}: {cause.get('message', '')}".strip(": ") for cause in causes]
        return "; ".join(dict.fromkeys(listed))
    if status.get("message"):
        return str(status["message"])
    text = " ".join(body[:200].decode(errors="replace").split())
    phrase = HTTPStatus(code).phrase if code in set(HTTPStatus) else "an unknown status"
    return f"{code} {phrase}" + (f" ({text})" if text and not text.startswith("<") else "")
