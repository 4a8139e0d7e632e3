"""What carries the collectives: NCCL between GPUs, gloo between processors, MPI where torch was built with it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ddp_trainer.train.config.options import BackendName
from ddp_trainer.train.utils.errors import BadConfig


def choose_backend(asked: BackendName, device: torch.device) -> str:
    """The name that ``init_process_group`` takes.

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
