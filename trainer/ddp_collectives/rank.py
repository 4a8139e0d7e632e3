"""This process among the ranks of a measurement, from its flags and from the launcher's environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ddp_collectives.device import Timer, choose
from ddp_collectives.errors import BadRequest, CommunicationFailed, first_line
from ddp_collectives.request import MeasurementRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """This process in the measurement."""

    request: MeasurementRequest
    rank: int
    world: int
    local_world: int
    node: int
    """Number of this node."""
    backend: str
    device: torch.device
    timer: Timer
    store: Any
    """torch's store, which is not part of the measurement."""
    store_address: str

    def init_process_group(self, topic: str, members: Sequence[int], timeout_seconds: float) -> None:
        """Join the process group of some ranks, which meet under a topic of the store. Raises RuntimeError."""
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore(topic, self.store),  # type: ignore[attr-defined] # documented, but not in __all__
            rank=members.index(self.rank),
            world_size=len(members),
            timeout=timedelta(seconds=timeout_seconds),
            # Otherwise NCCL derives a barrier's GPU from the global rank, which is wrong if nodes differ.
            device_id=self.device if self.device.type == "cuda" else None,
        )


def join(request: MeasurementRequest, environ: Mapping[str, str]) -> Rank:
    """Choose the device of this rank and connect to the store of all ranks.

    Raises:
        BadRequest: The environment is not that of a launcher, or the device is not available.
        CommunicationFailed: The store is not reachable.
    """
    try:
        rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank, local_world = int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"])
        node = int(environ.get("GROUP_RANK", "0"))
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise BadRequest(
            f"The environment lacks what a launcher sets ({error}); start it with `ddp-launch collectives`."
        ) from None
    backend, device, timer = choose(request.backend, local_rank, local_world)
    is_master = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    timeout = timedelta(seconds=request.timeout_seconds)
    try:
        store = dist.TCPStore(host, port, world, is_master=is_master, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined] # documented, but not in __all__
    except RuntimeError as error:
        raise CommunicationFailed(
            f"Rank {rank} could not meet its peers at {host}:{port}: {first_line(error)}."
        ) from error
    return Rank(
        request=request,
        rank=rank,
        world=world,
        local_world=local_world,
        node=node,
        backend=backend,
        device=device,
        timer=timer,
        store=store,
        store_address=f"{host}:{port}",
    )
