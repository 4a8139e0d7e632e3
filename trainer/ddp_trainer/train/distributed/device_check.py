"""Ranks of a group compute on one kind of device, told where they first meet: later, collectives would wait in vain."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.train.utils.errors import BadConfig

_KEY: Final = "device"


def demand_one_device(
    store: dist.Store,  # type: ignore[name-defined] # documented, but not in __all__
    prefix: str,
    rank: int,
    device: torch.device,
    backend: str,
) -> None:
    """Compare with whoever came first; one question to the store.

    Args:
        store: where the ranks meet.
        prefix: of all keys of this group.
        rank: this one.
        device: what it computes on.
        backend: what carries its collectives.

    Raises:
        BadConfig: the first one has another kind of device, or another backend.
    """
    own = f"{device.type} with {backend}"
    said = bytes(store.compare_set(f"{prefix}/{_KEY}", "", f"{rank}:{own}")).decode()
    first, _, theirs = said.partition(":")
    if theirs != own:
        raise BadConfig(
            f"Rank {rank} computes on {own}, and rank {first} on {theirs}: ranks of one group need one kind of device "
            "and one backend.",
            hint="Give GPUs to all pods or to none, and all ranks the same --device and --backend.",
        )
