"""Addresses for the pods of one job, from the loopback network 127.0.0.0/8.

Each job leases a block 127.x.y.0/24. The lease is the name of an abstract Unix socket that the engine holds. The kernel
keeps this name unique over all users of the network namespace, like the addresses, and releases it when the engine ends
for any reason.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Iterator
from typing import Final

from kubectl_ddp.errors import PreflightFailed

WORKERS: Final = 253
"""Maximum number of workers of a local job: a block without its network, broadcast and store addresses."""

# Other programs use 127.0.x.y: localhost, a Debian host's own name (127.0.1.1), systemd-resolved (127.0.0.53).
_FIRST, _LAST = 16, 254


class Network:
    """Address block of one job, leased until :meth:`close`."""

    def __init__(self, prefix: str, lease: socket.socket) -> None:
        self.prefix = prefix
        self._lease = lease

    @classmethod
    def lease(cls, job: str) -> Network:
        """Lease a free block; a job gets the same block as before if it is still free."""
        for prefix in _blocks(job):
            lease = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lease.bind(f"\0kubectl-ddp/{prefix}")
            except OSError as error:
                lease.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return cls(prefix, lease)
        raise PreflightFailed("Every block of loopback addresses is taken by a job.", hint="Delete some of them.")

    @property
    def store(self) -> str:
        """Address of the rendezvous store."""
        return f"{self.prefix}.1"

    def worker(self, index: int) -> str:
        """Return the address of a worker; it stays the same over restarts."""
        return f"{self.prefix}.{index + 2}"

    def close(self) -> None:
        """Release the block."""
        self._lease.close()


def _blocks(job: str) -> Iterator[str]:
    count = (_LAST - _FIRST + 1) * 256
    start = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % count
    for offset in range(count):
        high, low = divmod((start + offset) % count, 256)
        yield f"127.{_FIRST + high}.{low}"
