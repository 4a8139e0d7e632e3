"""Check that all ranks of a group use the same kind of device and backend.

:func:`require_same_device` runs when the ranks join, because collectives of mismatched ranks would hang later.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.train.utils.errors import BadConfig

_KEY: Final = "device"


def require_same_device(
    store: dist.Store,  # type: ignore[name-defined] # documented, but not in __all__
    prefix: str,
    rank: int,
    device: torch.device,
    backend: str,
) -> None:
    """Compare the device and backend of this rank with those of the first rank that joined.

    It costs one request to the store.

    Args:
        store: The store of the group.
        prefix: Prefix of all keys of this group.
        rank: Rank of this process.
        device: Device of this rank.
        backend: Backend of its collectives.

    Raises:
        BadConfig: The first rank has another kind of device or another backend.
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
