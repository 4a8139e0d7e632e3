from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.distributed.backend import backend_of_group, choose_backend
from ddp_trainer.train.utils.errors import BadConfig

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("asked", "device", "chosen"),
    [
        (BackendName.AUTO, CPU, "gloo"),
        (BackendName.AUTO, GPU, "nccl"),
        (BackendName.GLOO, CPU, "gloo"),
        (BackendName.GLOO, GPU, "gloo"),
    ],
)
def test_the_device_decides_unless_somebody_does(asked: BackendName, device: torch.device, chosen: str) -> None:
    assert choose_backend(asked, device) == chosen


@pytest.mark.parametrize(
    ("backend", "offloads", "taken"),
    [
        ("nccl", True, "cpu:gloo,cuda:nccl"),
        ("nccl", False, "nccl"),
        ("gloo", True, "gloo"),
        ("gloo", False, "gloo"),
        ("mpi", True, "mpi"),
    ],
)
def test_a_group_of_nccl_has_gloo_beside_it_for_what_is_offloaded(backend: str, offloads: bool, taken: str) -> None:
    assert backend_of_group(backend, offloads=offloads) == taken


def test_mpi_is_used_where_torch_has_it_and_else_a_sentence() -> None:
    if dist.is_mpi_available():
        assert choose_backend(BackendName.MPI, CPU) == "mpi"
        return
    with pytest.raises(BadConfig) as caught:
        choose_backend(BackendName.MPI, CPU)
    assert f"--backend is mpi, and torch {torch.__version__} was built without MPI" in str(caught.value)
    assert caught.value.exit_code == 2


def test_nccl_without_a_gpu_is_a_sentence() -> None:
    with pytest.raises(BadConfig) as caught:
        choose_backend(BackendName.NCCL, CPU)
    assert "this rank computes on cpu" in str(caught.value)
