"""Limits of a listener: connections in total and per address, open files, and log lines per minute.

:class:`ConnectionLimits` counts connections, :func:`apply_fd_limit` lowers a limit of connections to the limit of open
files, and :class:`RateLimitedLog` drops log lines above a rate. Standard library only: the launcher, the aggregator and
the preflight import this module.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

RESERVED_DESCRIPTORS: Final = 64
"""Open files that a process needs in addition to its connections."""
WINDOW_SECONDS: Final = 60.0
_IPV6_NETWORK_BITS: Final = 64
"""Prefix length of an IPv6 network; one host may use every address in it."""


def client_of(address: str) -> str:
    """Return the key under which connections from an address are counted; empty for a client on this machine.

    Each IPv4 address counts separately, also when it is mapped into IPv6. IPv6 addresses count by their /64 network,
    except link-local ones, which count separately. Loopback addresses and Unix sockets have no limit per address.

    >>> client_of("::ffff:192.0.2.7"), client_of("2001:db8::1:2:3:4"), client_of("fe80::1%eth0"), client_of("127.0.0.1")
    ('192.0.2.7', '2001:db8::/64', 'fe80::1', '')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    if parsed.is_loopback:
        return ""
    if parsed.version == 4 or parsed.is_link_local:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))


def apply_fd_limit(wanted: int, *, reserved: int = RESERVED_DESCRIPTORS, may_raise: bool = True) -> int:
    """Return how many connections, at most ``wanted``, fit into the limit of open files; at least 1.

    Raises the soft limit of the process as far as ``wanted`` needs it and the hard limit permits, if ``may_raise``.

    Args:
        wanted: Most connections that the listener would hold at the same time.
        reserved: Open files to keep for everything else in this process.
        may_raise: False to leave the limit of the process unchanged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + reserved
    if may_raise and soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - reserved))


class ConnectionLimits:
    """Count of open connections, in total and per address."""

    def __init__(self, *, total: int, per_address: int) -> None:
        self.total = total
        self.per_address = per_address
        self._open: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        """True if the total limit is reached."""
        return self._open.total() >= self.total

    def is_full_for(self, address: str) -> bool:
        """Return whether the limit per address is reached for this address."""
        client = client_of(address)
        return bool(client) and self._open[client] >= self.per_address

    def try_acquire(self, address: str) -> bool:
        """Count one more connection from an address unless a limit is reached, and return whether it was counted."""
        if self.is_full or self.is_full_for(address):
            return False
        self._open[client_of(address)] += 1
        return True

    def release(self, address: str) -> None:
        """Remove one connection from the count of an address that was admitted."""
        client = client_of(address)
        self._open[client] -= 1
        if self._open[client] <= 0:
            del self._open[client]


class RateLimitedLog:
    """Log that writes a limited number of lines per minute and counts the others.

    It writes the count as one more line with the first line of the next minute, and in :meth:`flush`.
    """

    def __init__(
        self, *, lines_per_minute: int, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines_per_minute = lines_per_minute
        self._write = write
        self._clock = clock
        self._begun = float("-inf")
        self._written = 0
        self._suppressed = 0

    def write(self, line: str) -> None:
        """Write a line, or count it if the limit of this minute is reached."""
        now = self._clock()
        if now - self._begun >= WINDOW_SECONDS:
            self.flush()
            self._begun, self._written = now, 0
        if self._written < self._lines_per_minute:
            self._written += 1
            self._write(line)
        else:
            self._suppressed += 1

    def flush(self) -> None:
        """Write the number of lines dropped since the last flush, if there are any."""
        suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            self._write(f"{suppressed} more lines like these were suppressed (limit {self._lines_per_minute} a minute)")
