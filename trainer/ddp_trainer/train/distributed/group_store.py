"""Where the ranks of a group have met: a store. By it they form torch's process group, and spares hear of the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from ddp_trainer.process.group_names import restart_group_names

_LOOK_SECONDS: Final = 0.02
"""Between looks who has heard it."""


@dataclass(frozen=True, slots=True)
class GroupStore:
    """Where the ranks of a group have met."""

    store: dist.TCPStore  # type: ignore[name-defined] # documented, but not in __all__
    prefix: str
    """Of all keys of this group."""
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

    def narrowed(self) -> GroupStore:
        """The same place for some of the ranks."""
        return replace(self, prefix=f"{self.prefix}/placed")

    def await_all(self, world_size: int, place: str = "narrowed", timeout: timedelta | None = None) -> None:
        """Return once so many ranks have come to this place. Raises RuntimeError where they do not in time."""
        if self.store.add(f"{self.prefix}/{place}", 1) == world_size:
            self.store.set(f"{self.prefix}/all-{place}", b"1")
        self.store.wait([f"{self.prefix}/all-{place}"], timeout or self.timeout)

    def result(self) -> bytes | None:
        """What the run has left, once it is over; whoever asks has heard it then."""
        if not self.store.check([f"{self.prefix}/result"]):
            return None
        result = bytes(self.store.get(f"{self.prefix}/result"))
        self.store.add(f"{self.prefix}/heard", 1)
        return result

    def leave(self, result: bytes, spares: int) -> None:
        """Leave it, and return when so many ranks have heard it, or will not."""
        self.store.set(f"{self.prefix}/result", result)
        deadline = time.monotonic() + self.timeout.total_seconds()
        while self.store.add(f"{self.prefix}/heard", 0) < spares and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
