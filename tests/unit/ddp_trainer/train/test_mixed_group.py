"""A group of NCCL and gloo, as ``--fsdp-offload`` has it on GPUs, is left as one of NCCL; see ``mixed_group.py``."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.train.distributed import group as group_module
from ddp_trainer.train.distributed.group_teardown import destroy_default_group
from ddp_trainer.train.distributed.stream_abort import STREAMS
from ddp_trainer.train.utils.errors import PeerLost
from tests.support import mixed_group
from tests.support.mixed_group import NAME, Launcher
from tests.support.ports import free_port
from tests.support.stream_model import ModelStreams

ROOT = Path(__file__).parents[4]
SOON = 60.0


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed_group.register()
    monkeypatch.setitem(STREAMS, NAME, ModelStreams())
    monkeypatch.setattr(group_module, "choose_backend", lambda *_: NAME)


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends of groups that torch has aborted."""
    found: list[str] = []
    abort_group = dist.distributed_c10d._abort_process_group

    def noted(*args: Any) -> None:
        found.append(dist.get_backend_config())
        abort_group(*args)

    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", noted)
    return found


def test_a_process_that_waits_for_an_offloaded_tensor_leaves_its_group_and_joins_the_next(aborts: list[str]) -> None:
    launcher, ports = Launcher(), (free_port(), free_port())
    command = [sys.executable, "-m", mixed_group.__name__, *map(str, ports)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as peer, ThreadPoolExecutor(1) as pool:
        group = mixed_group.join(0, ports[0], 1, launcher)
        assert dist.get_backend_config() == f"cpu:gloo,cuda:{NAME}"
        assert (group.backend, group.can_survive_group_end) == (NAME, True)
        assert peer.stdout.readline() == "has joined\n"
        waiting = pool.submit(group.sum, torch.ones(2))
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        launcher.call_off()  # the peer is alive and silent
        with pytest.raises(PeerLost):
            waiting.result(SOON)
        assert group.is_broken
        group.free_device(agreed=False)
        group.abort()
        assert aborts == [f"cpu:gloo,cuda:{NAME}"]
        assert not dist.is_initialized()
        peer.stdin.write("\n")  # its connection to this process is closed, though the process lives
        peer.stdin.flush()
        group = mixed_group.join(0, ports[1], 2, Launcher())
        assert group.sum(torch.ones(2)).tolist() == [2.0, 2.0]
        group.close()
        assert peer.wait(SOON) == 0


@pytest.mark.parametrize(
    ("backend", "is_aborted"), [(f"cpu:gloo,cuda:{NAME}", True), (NAME, True), ("gloo", False), ("cpu:gloo", False)]
)
def test_a_group_on_streams_is_aborted_others_are_destroyed(backend: str, is_aborted: bool, aborts: list[str]) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined] # documented, but not in __all__
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    destroy_default_group()
    assert bool(aborts) is is_aborted
    assert not dist.is_initialized()
