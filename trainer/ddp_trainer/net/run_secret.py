"""Secret of a run: read from its file, and never printed.

All processes of one run that listen or connect have the same 256 random bits. They prove this to each other with
:mod:`ddp_trainer.net.handshake`. :func:`read_run_secret` is the entry point of the launcher, the store and the
preflight. Standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from typing import Final

LEAST_CHARACTERS: Final = 32
"""Shortest secret in a file, in characters; a random one has 64 hexadecimal digits."""
MOST_BYTES: Final = 4096
HOW_TO_MAKE: Final = "write one with: (umask 077 && openssl rand -hex 32 >FILE)"
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")


PUBLISHED_CHARACTERS: Final = 1
"""Number of distinct characters in the placeholder of the rendered examples, which is a row of zeros."""


class BadSecret(Exception):
    """Unusable secret file; the message is one sentence with the file and the fix."""


@dataclass(frozen=True, slots=True)
class RunSecret:
    """Secret of a run, from which a key per purpose is derived. Its representation does not show the secret."""

    _secret: bytes = field(repr=False)
    is_published: bool = False
    """True for the placeholder of the rendered examples, which is public."""

    @classmethod
    def random(cls) -> RunSecret:
        """Return a new secret of 256 random bits."""
        return cls(secrets.token_bytes(32))

    def key(self, purpose: str) -> bytes:
        """Return the 32-byte key for one purpose. A proof for one listener is not valid for another."""
        return hmac.digest(self._secret, f"ddp {purpose}".encode(), hashlib.sha256)


def read_run_secret(path: str, run_id: str = "") -> RunSecret:
    """Return the secret in a file of the form ``RUN_ID:SECRET`` or ``SECRET``, or derived from a private key.

    The secret that is derived does not reveal the key. Nodes that share a home directory have the same key.

    Args:
        path: Path of the file; ``~`` is the home directory.
        run_id: Id of this run; empty to accept any run.

    Raises:
        BadSecret: If the file is missing, empty, readable by others, malformed, or of another run.
    """
    path = os.path.expanduser(path)  # noqa: PTH111 - not a path of ours
    text = _read(path)
    if _PRIVATE_KEY.match(text):
        return RunSecret(hashlib.sha256(f"ddp run secret\n{text}".encode()).digest())
    owner, colon, secret = text.rpartition(":")
    if colon and run_id and owner != run_id:
        raise BadSecret(f"secret file {path} is of another run; name the file of run {run_id!r}")
    if not text:
        raise BadSecret(f"secret file {path} is empty; {HOW_TO_MAKE}")
    if len(secret) < LEAST_CHARACTERS or not secret.isascii() or not secret.isalnum():
        raise BadSecret(
            f"secret file {path} holds no secret of at least {LEAST_CHARACTERS} letters and digits; {HOW_TO_MAKE}"
        )
    is_published = len(set(secret)) == PUBLISHED_CHARACTERS
    return RunSecret(hashlib.sha256(secret.encode()).digest(), is_published)


def _read(path: str) -> str:
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadSecret(f"secret file {path} is not a regular file; {HOW_TO_MAKE}")
            if status.st_mode & stat.S_IRWXO:
                raise BadSecret(f"secret file {path} is open to other users; close it with: chmod o= {path}")
            return file.read(MOST_BYTES).decode(errors="replace").strip()
    except OSError as error:
        raise BadSecret(f"secret file {path} cannot be read ({error.strerror}); {HOW_TO_MAKE}") from None


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file like :func:`open`, without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)
