"""Authentication headers from a kubeconfig's user.

Passwords, tokens and token files are read here. Credentials that a program or an older provider creates come from the
Kubernetes client (:mod:`.auth_provider`).
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
"""Seconds after which a token file is read again. Tokens of service accounts are renewed in the file."""

MADE: Final = ("exec", "auth-provider")
"""Keys of a user whose credentials are created by a program or a provider, and expire."""

IMPERSONATION: Final = {"as": "Impersonate-User", "as-uid": "Impersonate-Uid", "as-groups": "Impersonate-Group"}
"""Key of a user → header. A list results in one header per entry."""
EXTRA: Final = ("as-user-extra", "Impersonate-Extra-")
"""Key of a map of lists, and prefix of the headers: one header per key of the map and entry."""
IN_HEADER: Final = "!#$&'*+-.^_`|~"
"""Characters allowed in the name of a header besides letters and digits (RFC 9110, token), except ``%``."""


def needs_auth_plugin(user: Mapping[str, Any]) -> bool:
    """Return whether a program or a provider must create the credentials."""
    return any(user.get(key) for key in MADE)


def headers_of(user: Mapping[str, Any]) -> Callable[[], Headers]:
    """Return a function that returns the headers. It must be called for each request, because token files are
    renewed.
    """
    if path := user.get("tokenFile"):
        token = TokenFile(Path(path))
        return lambda: {"authorization": f"Bearer {token.read()}"}
    fixed = _fixed(user)
    return lambda: fixed


def impersonation_headers(user: Mapping[str, Any]) -> Headers:
    """Return the headers that impersonate another user. Raises UsageError for groups without a user."""
    extra, prefix = EXTRA
    if not any(user.get(key) for key in (*IMPERSONATION, extra)):
        return {}
    from urllib3 import HTTPHeaderDict  # noqa: PLC0415 - for repeated headers; rarely needed

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
    """Merge headers, and keep names that occur several times."""
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
    """Token in a file that another program renews."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read_at = float("-inf")
        self._token = ""

    def read(self) -> str:
        """Return the token, read at most :data:`FRESH_SECONDS` ago. Raises Forbidden if the file cannot be read."""
        now = self._clock()
        if now - self._read_at > FRESH_SECONDS:
            try:
                self._token = self._path.read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise Forbidden(f"The token file '{self._path}' cannot be read: {error}.") from error
            self._read_at = now
        return self._token
