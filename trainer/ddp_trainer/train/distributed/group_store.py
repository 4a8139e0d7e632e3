"""Store of a worker group: it forms torch's default process group, and passes the result of the run to spare ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from ddp_trainer.process.group_names import restart_group_names

_POLL_SECONDS: Final = 0.02
"""Interval between checks whether all spare ranks have read the result."""


@dataclass(frozen=True, slots=True)
class GroupStore:
    """The store of one worker group, with the settings of its process group."""

    store: dist.TCPStore  # type: ignore[name-defined] # documented, but not in __all__
    prefix: str
    """Prefix of all keys of this group."""
    backend: str
    timeout: timedelta

    def begin(self, rank: int, world_size: int) -> None:
        """Form torch's default process group."""
        restart_group_names()
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore(self.prefix, self.store),  # type: ignore[attr-defined] # documented, but not in __all__
            rank=rank,
            world_size=world_size,
            timeout=self.timeout,
        )

    def subgroup_store(self) -> GroupStore:
        """Return the same store with another prefix, for a group of the first ranks."""
        return replace(self, prefix=f"{self.prefix}/placed")

    def await_all(self, world_size: int, place: str = "narrowed", timeout: timedelta | None = None) -> None:
        """Block until ``world_size`` ranks have reached the barrier ``place``.

        Args:
            world_size: Number of ranks to wait for.
            place: Name of the barrier. A barrier can be used once.
            timeout: Maximum wait; None for the timeout of the group.

        Raises:
            RuntimeError: The timeout expired.
        """
        if self.store.add(f"{self.prefix}/{place}", 1) == world_size:
            self.store.set(f"{self.prefix}/all-{place}", b"1")
        self.store.wait([f"{self.prefix}/all-{place}"], timeout or self.timeout)

    def result(self) -> bytes | None:
        """Return the result of the run and confirm its receipt, or return None while the run continues."""
        if not self.store.check([f"{self.prefix}/result"]):
            return None
        result = bytes(self.store.get(f"{self.prefix}/result"))
        self.store.add(f"{self.prefix}/heard", 1)
        return result

    def publish_result(self, result: bytes, spares: int) -> None:
        """Publish the result of the run. Wait until all spare ranks have read it, or until the timeout."""
        self.store.set(f"{self.prefix}/result", result)
        deadline = time.monotonic() + self.timeout.total_seconds()
        while self.store.add(f"{self.prefix}/heard", 0) < spares and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
