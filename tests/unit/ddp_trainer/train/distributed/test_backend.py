from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.distributed.device_selection import backend_of_group, choose_backend, is_nccl2
from ddp_trainer.train.utils.errors import BadConfig

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("requested", "device", "chosen"),
    [
        (BackendName.AUTO, CPU, "gloo"),
        (BackendName.AUTO, GPU, "nccl"),
        (BackendName.GLOO, CPU, "gloo"),
        (BackendName.GLOO, GPU, "gloo"),
    ],
)
def test_the_device_decides_unless_somebody_does(requested: BackendName, device: torch.device, chosen: str) -> None:
    assert choose_backend(requested, device) == chosen


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


@pytest.mark.parametrize(
    ("creator", "answer"),
    [
        ("_create_nccl_process_group", False),
        ("_create_nccl2_process_group", True),
        ("_create_nccl_lazy_process_group", True),
        (None, False),
    ],
    ids=["torch 2.14, or TORCH_DIST_USE_NCCL2=0", "torch 2.15", "nccl-lazy", "torch 2.13, without an entry"],
)
def test_the_registry_of_torch_decides_what_nccl_is(
    monkeypatch: pytest.MonkeyPatch, creator: str | None, answer: bool
) -> None:
    plugins: dict[str, Any] = {}

    def enter(name: str) -> None:
        def create() -> None: ...

        if creator:
            create.__name__ = creator
            plugins[name.upper()] = dist.Backend._BackendPlugin(create, True)

    monkeypatch.setattr(dist.Backend, "_plugins", plugins)
    monkeypatch.setattr(dist.Backend, "_ensure_backend_registered", enter, raising=False)
    assert is_nccl2("nccl") is answer


@pytest.mark.any_torch
@pytest.mark.skipif(not dist.is_nccl_available(), reason="this build of torch has no NCCL")
@pytest.mark.skipif(not hasattr(dist, "ProcessGroupNCCL2"), reason="this torch has no nccl2")
def test_torchs_own_entries_tell_its_nccl_backends_apart() -> None:
    found = {name: is_nccl2(name) for name in ("nccl2", "nccl-lazy", "nccl-legacy", "gloo")}
    assert found == {"nccl2": True, "nccl-lazy": True, "nccl-legacy": False, "gloo": False}
