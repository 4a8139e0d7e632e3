"""Who asks: what a user of the kubeconfig says becomes headers and a client certificate.

Passwords, tokens, files with tokens and certificates are read here. Credentials that a program makes, and those of the
older providers, are made by the Kubernetes client (:mod:`.client_library`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kubectl_ddp.errors import Forbidden, UsageError

Headers = Mapping[str, str]

FRESH_SECONDS: Final = 60.0
"""How long a token out of a file is used before the file is read again: a service account's is renewed there."""

MADE: Final = ("exec", "auth-provider")
"""Keys of a user whose credentials are made, and expire."""

IMPERSONATION: Final = {"as": "Impersonate-User", "as-uid": "Impersonate-Uid", "as-groups": "Impersonate-Group"}
"""Key of a user → the header that says it; a list is said once for each of its words."""
EXTRA: Final = ("as-user-extra", "Impersonate-Extra-")
"""The same for a map of lists: each of its keys has a header of its own."""
IN_HEADER: Final = "!#$&'*+-.^_`|~"
"""What may stand in the name of a header besides letters and digits (RFC 9110, token), but for ``%``."""


def needs_auth_plugin(user: Mapping[str, Any]) -> bool:
    """Whether a program or a provider has to make the credentials."""
    return any(user.get(key) for key in MADE)


def headers_of(user: Mapping[str, Any]) -> Callable[[], Headers]:
    """What makes the headers of a request; to be called for each, since a token in a file is renewed there."""
    if path := user.get("tokenFile"):
        token = TokenFile(Path(path))
        return lambda: {"authorization": f"Bearer {token.read()}"}
    fixed = _fixed(user)
    return lambda: fixed


def impersonation_headers(user: Mapping[str, Any]) -> Headers:
    """Headers by which the user acts as another. Raises UsageError for groups and the like of nobody."""
    extra, prefix = EXTRA
    if not any(user.get(key) for key in (*IMPERSONATION, extra)):
        return {}
    from urllib3 import HTTPHeaderDict  # noqa: PLC0415 - knows headers that come more than once; few need it

    headers = HTTPHeaderDict()
    for key, header in IMPERSONATION.items():
        given = user.get(key) or ()
        for value in [given] if isinstance(given, str) else given:
            headers.add(header, str(value))
    for key, values in (user.get(extra) or {}).items():
        for value in values:
            headers.add(f"{prefix}{quote(key, safe=IN_HEADER)}", str(value))
    if headers and not user.get("as"):
        raise UsageError(
            f"{', '.join(headers)} belong to a user who is acted as, and none is named.", hint="Name one with --as."
        )
    return headers


def merge_headers(*headers: Headers) -> Headers:
    """All of these headers, those too that come more than once."""
    if all(isinstance(each, dict) for each in headers):
        return {name: value for each in headers for name, value in each.items()}
    from urllib3 import HTTPHeaderDict  # noqa: PLC0415 - as above

    every = HTTPHeaderDict()
    for each in headers:
        every.extend(each)
    return every


def _fixed(user: Mapping[str, Any]) -> Headers:
    if user.get("token"):
        return {"authorization": f"Bearer {user['token']}"}
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password') or ''}"
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


class TokenFile:
    """A token that somebody renews in a file."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read_at = float("-inf")
        self._token = ""

    def read(self) -> str:
        """The token, no older than :data:`FRESH_SECONDS`. Raises Forbidden when the file cannot be read."""
        now = self._clock()
        if now - self._read_at > FRESH_SECONDS:
            try:
                self._token = self._path.read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise Forbidden(f"The token file '{self._path}' cannot be read: {error}.") from error
            self._read_at = now
        return self._token
