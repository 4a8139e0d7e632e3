"""Selection of the collective backend, and the check that all ranks of a group use the same one.

NCCL is for GPUs, gloo for CPUs, and MPI for a torch that is built with it. :func:`require_same_device` runs when the
ranks join, because collectives of mismatched ranks would hang later.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.distributed.stream_abort import STREAMS
from ddp_trainer.train.utils.errors import BadConfig


def choose_backend(requested: BackendName, device: torch.device) -> str:
    """Return the name of the backend for collectives on tensors of a device.

    Args:
        requested: The backend of ``--backend``; AUTO selects NCCL for GPUs and gloo for CPUs.
        device: The device of this rank.

    Raises:
        BadConfig: This build of torch lacks the backend, or the backend does not support the device.
    """
    if requested is BackendName.AUTO:
        return "nccl" if device.type == "cuda" else "gloo"
    if requested is BackendName.MPI and not dist.is_mpi_available():
        raise BadConfig(
            f"--backend is mpi, and torch {torch.__version__} was built without MPI, as its published builds are.",
            hint="Give --backend gloo or nccl, or install a torch that was built from source where MPI is.",
        )
    if requested is BackendName.NCCL and (device.type != "cuda" or not dist.is_nccl_available()):
        raise BadConfig(
            f"--backend is nccl, which carries tensors of NVIDIA GPUs alone, and this rank computes on {device.type}.",
            hint="Give --backend gloo, or start at most one rank per GPU.",
        )
    return requested.value


def backend_of_group(backend: str, *, offloads: bool) -> str:
    """Return the backend argument of ``init_process_group``.

    Args:
        backend: The result of :func:`choose_backend`.
        offloads: True if FSDP2 keeps weights and gradients of a GPU rank in CPU memory. NCCL does not support these, so
            the group also gets gloo. GPU tensors, and the rules for leaving the group, stay with NCCL.

    Source: torchtitan's ``init_distributed``, which adds ``cpu:gloo`` for CPU offload.
    """
    return f"cpu:gloo,cuda:{backend}" if offloads and backend in STREAMS else backend


def is_nccl2(backend: str) -> bool:
    """Return whether torch implements a backend by nccl2, its second NCCL backend, which has other variables.

    torch's registry decides. The version alone does not: ``TORCH_DIST_USE_NCCL2`` changes the meaning of ``nccl``.
    torch 2.14 and newer enter a backend when the first group needs it, so it is entered here. Before torch 2.14 the
    registry has no NCCL backend.

    Args:
        backend: Name of a backend, for example ``nccl``, ``nccl-legacy``, ``nccl2`` or ``nccl-lazy``, a form of nccl2.
    """
    enter = getattr(dist.Backend, "_ensure_backend_registered", None)
    if enter is not None:
        enter(backend)
    plugin = dist.Backend._plugins.get(backend.upper())  # noqa: SLF001 - torch has no public way
    name = "" if plugin is None else getattr(plugin.creator_fn, "__name__", "")
    return "nccl2" in name or "nccl_lazy" in name


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
    answer = bytes(store.compare_set(f"{prefix}/{_KEY}", "", f"{rank}:{own}")).decode()
    first, _, of_first = answer.partition(":")
    if of_first != own:
        raise BadConfig(
            f"Rank {rank} computes on {own}, and rank {first} on {of_first}: ranks of one group need one kind of "
            "device and one backend.",
            hint="Give GPUs to all pods or to none, and all ranks the same --device and --backend.",
        )
