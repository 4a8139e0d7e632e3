"""What names stand for on this node, forward and back, and whether /etc/hosts has a say in it."""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from ddp_trainer.preflight.schema import Resolution

_HOSTS: Final = Path("/etc/hosts")
ANSWER_SECONDS: Final = 5.0
"""A name server that does not answer by then would hold up the start of the run, too."""

Answer = TypeVar("Answer")


def forward(name: str) -> Resolution:
    """The addresses of a name, or why there are none. An address stands for itself."""
    try:
        found = _answer(partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Resolution(name=name, error=why, hosts_line=hosts_line(name))
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    return Resolution(name=name, addresses=addresses, hosts_line=hosts_line(name))


def back(address: str) -> str:
    """The name that an address leads back to; empty for none."""
    try:
        name, _ = _answer(partial(socket.getnameinfo, (address, 0), socket.NI_NAMEREQD))
    except OSError:
        return ""
    return name


def _answer(ask: Callable[[], Answer]) -> Answer:
    """What the resolver says, which may take its time for ever. Raises OSError."""
    answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()

    def wait_for_it() -> None:
        try:
            answers.put(ask())
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=wait_for_it, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        raise OSError(errno.ETIMEDOUT, f"no answer from the resolver in {ANSWER_SECONDS:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def hosts_line(name: str, hosts: Path = _HOSTS) -> str:
    """The first line of /etc/hosts that has the name; empty for none."""
    try:
        lines = hosts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.partition("#")[0].split()
        if name.lower() in (word.lower() for word in words[1:]):
            return " ".join(words)
    return ""


def is_address(text: str) -> bool:
    """Whether it needs no resolver."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether it leads back to the machine that uses it."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
