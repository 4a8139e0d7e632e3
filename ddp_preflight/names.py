"""Name resolution on this node, forward and reverse, with the matching line of /etc/hosts."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from ddp_preflight.schema import Resolution
from ddp_trainer.net.asyncio_utils import run_in_daemon_thread

_HOSTS: Final = Path("/etc/hosts")
ANSWER_SECONDS: Final = 5.0
"""Timeout of the resolver in seconds. A slower name server would also delay the start of the run."""

Answer = TypeVar("Answer")


def forward(name: str) -> Resolution:
    """Return the addresses of a name, or the error. An address resolves to itself."""
    try:
        found = _call_with_timeout(partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Resolution(name=name, error=why, hosts_line=hosts_line(name))
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    return Resolution(name=name, addresses=addresses, hosts_line=hosts_line(name))


def back(address: str) -> str:
    """Return the name of an address; empty if it has none."""
    try:
        name, _ = _call_with_timeout(partial(socket.getnameinfo, (address, 0), socket.NI_NAMEREQD))
    except OSError:
        return ""
    return name


def _call_with_timeout(resolve: Callable[[], Answer]) -> Answer:
    """Return the resolver's result within :data:`ANSWER_SECONDS`, as it may block forever. Raises OSError."""
    try:
        return run_in_daemon_thread(resolve).result(timeout=ANSWER_SECONDS)
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, f"no answer from the resolver in {ANSWER_SECONDS:g} s") from None


def hosts_line(name: str, hosts: Path = _HOSTS) -> str:
    """Return the first line of /etc/hosts that contains the name; empty if there is none."""
    try:
        lines = hosts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.partition("#")[0].split()
        if name.lower() in (word.lower() for word in words[1:]):
            return " ".join(words)
    return ""
