"""Selection of the collective backend: NCCL for GPUs, gloo for CPUs, MPI if torch is built with it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.distributed.stream_abort import STREAMS
from ddp_trainer.train.utils.errors import BadConfig


def choose_backend(asked: BackendName, device: torch.device) -> str:
    """Return the name of the backend for collectives on tensors of a device.

    Args:
        asked: The backend of ``--backend``; AUTO selects NCCL for GPUs and gloo for CPUs.
        device: The device of this rank.

    Raises:
        BadConfig: This build of torch lacks the backend, or the backend does not support the device.
    """
    if asked is BackendName.AUTO:
        return "nccl" if device.type == "cuda" else "gloo"
    if asked is BackendName.MPI and not dist.is_mpi_available():
        raise BadConfig(
            f"--backend is mpi, and torch {torch.__version__} was built without MPI, as its published builds are.",
            hint="Give --backend gloo or nccl, or install a torch that was built from source where MPI is.",
        )
    if asked is BackendName.NCCL and (device.type != "cuda" or not dist.is_nccl_available()):
        raise BadConfig(
            f"--backend is nccl, which carries tensors of NVIDIA GPUs alone, and this rank computes on {device.type}.",
            hint="Give --backend gloo, or start at most one rank per GPU.",
        )
    return asked.value


def backend_of_group(backend: str, *, offloads: bool) -> str:
    """Return the backend argument of ``init_process_group``.

    Args:
        backend: The result of :func:`choose_backend`.
        offloads: True if FSDP2 keeps weights and gradients of a GPU rank in CPU memory. NCCL does not support these, so
            the group also gets gloo. GPU tensors, and the rules for leaving the group, stay with NCCL.

    Source: torchtitan's ``init_distributed``, which adds ``cpu:gloo`` for CPU offload.
    """
    return f"cpu:gloo,cuda:{backend}" if offloads and backend in STREAMS else backend
