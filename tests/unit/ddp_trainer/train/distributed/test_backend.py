"""The setup of a group: backend, devices, store, and errors of collectives."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed import device_selection
from ddp_trainer.train.distributed.collective_errors import is_network, reason
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig, PeerLost
from tests.support.ports import free_port

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("requested", "device", "chosen"),
    [(BackendName.AUTO, CPU, "gloo"), (BackendName.AUTO, GPU, "nccl"), (BackendName.GLOO, GPU, "gloo")],
)
def test_the_device_decides_unless_somebody_does(requested: BackendName, device: torch.device, chosen: str) -> None:
    assert device_selection.choose_backend(requested, device) == chosen


@pytest.mark.parametrize(
    ("backend", "offloads", "taken"),
    [("nccl", True, "cpu:gloo,cuda:nccl"), ("nccl", False, "nccl"), ("gloo", True, "gloo"), ("mpi", True, "mpi")],
)
def test_a_group_of_nccl_has_gloo_beside_it_for_what_is_offloaded(backend: str, offloads: bool, taken: str) -> None:
    assert device_selection.backend_of_group(backend, offloads=offloads) == taken


def test_mpi_is_used_where_torch_has_it_and_else_a_sentence() -> None:
    if dist.is_mpi_available():
        assert device_selection.choose_backend(BackendName.MPI, CPU) == "mpi"
        return
    with pytest.raises(BadConfig) as caught:
        device_selection.choose_backend(BackendName.MPI, CPU)
    assert f"--backend is mpi, and torch {torch.__version__} was built without MPI" in str(caught.value)
    assert caught.value.exit_code == 2


def test_nccl_without_a_gpu_is_a_sentence() -> None:
    with pytest.raises(BadConfig, match="this rank computes on cpu"):
        device_selection.choose_backend(BackendName.NCCL, CPU)


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
def test_the_registry_decides_what_nccl_is(monkeypatch: pytest.MonkeyPatch, creator: str | None, answer: bool) -> None:
    plugins: dict[str, Any] = {}

    def enter(name: str) -> None:
        def create() -> None: ...

        if creator:
            create.__name__ = creator
            plugins[name.upper()] = dist.Backend._BackendPlugin(create, True)

    monkeypatch.setattr(dist.Backend, "_plugins", plugins)
    monkeypatch.setattr(dist.Backend, "_ensure_backend_registered", enter, raising=False)
    assert device_selection.is_nccl2("nccl") is answer


@pytest.mark.any_torch
@pytest.mark.skipif(not dist.is_nccl_available(), reason="this build of torch has no NCCL")
@pytest.mark.skipif(not hasattr(dist, "ProcessGroupNCCL2"), reason="this torch has no nccl2")
def test_torchs_own_entries_tell_its_nccl_backends_apart() -> None:
    found = {name: device_selection.is_nccl2(name) for name in ("nccl2", "nccl-lazy", "nccl-legacy", "gloo")}
    assert found == {"nccl2": True, "nccl-lazy": True, "nccl-legacy": False, "gloo": False}


SECOND_GPU = torch.device("cuda", 1)


@pytest.fixture
def store() -> dist.TCPStore:  # type: ignore[name-defined] # documented, but not in __all__
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined] # as above


def test_both_ranks_are_named_whoever_came_first(store: dist.Store) -> None:  # type: ignore[name-defined] # as above
    device_selection.require_same_device(store, "a", 3, SECOND_GPU, "nccl")
    with pytest.raises(BadConfig) as caught:
        device_selection.require_same_device(store, "a", 0, CPU, "gloo")
    assert caught.value.message == (
        "Rank 0 computes on cpu with gloo, and rank 3 on cuda with nccl: ranks of one group need one kind of device "
        "and one backend."
    )
    assert caught.value.exit_code == 2
    with pytest.raises(BadConfig, match="Rank 1 computes on cuda with gloo, and rank 3 on cuda with nccl"):
        device_selection.require_same_device(store, "a", 1, SECOND_GPU, "gloo")


def test_a_rank_does_not_join_a_group_of_another_device(store: dist.TCPStore) -> None:  # type: ignore[name-defined] # as above
    here = Environment(rank=1, world_size=2, master_address="127.0.0.1", master_port=store.port)
    store.set(f"ddp/generation-{here.generation}/device", "0:cuda with nccl")
    with pytest.raises(BadConfig, match="Rank 1 computes on cpu with gloo, and rank 0 on cuda with nccl"):
        Group.join(here, CPU, 60.0, BackendName.GLOO)
    assert not dist.is_initialized()


PEER = """
import sys
import torch
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.config.option_values import BackendName

port, generation = sys.argv[1:]
place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DDP_GENERATION": generation}
group = Group.join(Environment.from_env(place), torch.device("cpu"), 60.0, BackendName.GLOO)
torch.distributed.barrier()
group.close()
"""


def test_a_rank_whose_last_group_was_never_completed_meets_one_that_has_just_started() -> None:
    here = Environment(rank=0, world_size=2, master_address="127.0.0.1")
    for generation in (1, 2):
        with pytest.raises(PeerLost):
            Group.join(replace(here, generation=generation, master_port=free_port()), CPU, 0.2, BackendName.GLOO)
        assert not dist.is_initialized()
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", PEER, str(port), "3"]) as peer:
        group = Group.join(replace(here, generation=3, master_port=port), CPU, 60.0, BackendName.GLOO)
        dist.barrier()
        group.close()
        assert peer.wait() == 0


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("[/a/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer. This is", True),
        ("Timed out waiting 1000ms for recv operation to complete", True),
        ("expected scalar type Float but found Double", False),
    ],
)
def test_a_lost_peer_is_told_from_a_bug_by_its_words(text: str, network: bool) -> None:
    assert is_network(RuntimeError(text)) is network


def test_a_reason_is_one_clause() -> None:
    assert reason("[/a/pair.cc:1] Connection closed by peer [10.0.0.1]:9. This is typically caused by\nmore") == (
        "Connection closed by peer [10.0.0.1]:9"
    )
    assert reason("") == "no reason was given"
