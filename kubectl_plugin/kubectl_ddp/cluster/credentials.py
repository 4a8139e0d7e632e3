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

from kubectl_ddp.errors import Forbidden, UsageError

Headers = Mapping[str, str]

FRESH_SECONDS: Final = 60.0
"""How long a token out of a file is used before the file is read again: a service account's is renewed there."""

MADE: Final = ("exec", "auth-provider")
"""Keys of a user whose credentials are made, and expire."""

IMPERSONATION: Final = {"as": "Impersonate-User", "as-uid": "Impersonate-Uid"}
NOT_SPOKEN: Final = ("as-groups", "as-user-extra")


def is_made(user: Mapping[str, Any]) -> bool:
    """Whether a program or a provider has to make the credentials."""
    return any(user.get(key) for key in MADE)


def headers_of(user: Mapping[str, Any]) -> Callable[[], Headers]:
    """What makes the headers of a request; to be called for each, since a token in a file is renewed there."""
    if path := user.get("tokenFile"):
        token = TokenFile(Path(path))
        return lambda: {"authorization": f"Bearer {token.read()}"}
    fixed = _fixed(user)
    return lambda: fixed


def impersonation_of(user: Mapping[str, Any]) -> Headers:
    """Headers by which the user acts as another. Raises UsageError for a way of it that we cannot say."""
    for key in NOT_SPOKEN:
        if user.get(key):
            raise UsageError(
                f"The kubeconfig's user acts for others by '{key}', which is not understood here.",
                hint="Choose another context with --context.",
            )
    return {header: str(user[key]) for key, header in IMPERSONATION.items() if user.get(key)}


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
