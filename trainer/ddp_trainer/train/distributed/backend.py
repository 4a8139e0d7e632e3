"""What carries the collectives: NCCL between GPUs, gloo between processors, MPI where torch was built with it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ddp_trainer.train.config.options import BackendName
from ddp_trainer.train.distributed.stream_abort import STREAMS
from ddp_trainer.train.utils.errors import BadConfig


def choose_backend(asked: BackendName, device: torch.device) -> str:
    """Return the backend that carries tensors of the device.

    Raises:
        BadConfig: this build of torch has no such backend, or the backend cannot carry tensors of the device.
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
    """Return what ``init_process_group`` takes.

    Args:
        backend: What :func:`choose_backend` has returned.
        offloads: FSDP2 keeps weights and gradients of a GPU's rank in the CPU's memory. NCCL cannot carry those, so the
            group has gloo for them. The GPU's tensors, and the rules for leaving the group, stay NCCL's.

    Source: torchtitan's ``init_distributed``, which adds ``cpu:gloo`` for CPU offload.
    """
    return f"cpu:gloo,cuda:{backend}" if offloads and backend in STREAMS else backend
