"""The GPU of a rank of ``ddp-launch collectives``, with simulated devices."""

from __future__ import annotations

import pytest
import torch

from ddp_collectives.flags import BadRequest
from ddp_collectives.rank import choose_device


def cuda(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)


def test_a_rank_that_sees_its_own_gpu_alone_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, gpus=1)
    assert choose_device("nccl", 0, 8) == ("nccl", torch.device("cuda", 0))


def test_a_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, gpus=4)
    assert choose_device("auto", 3, 8)[1] == torch.device("cuda", 3)
    with pytest.raises(BadRequest, match="8 ranks on this node and 4 GPUs that torch can use; lower --nproc"):
        choose_device("auto", 4, 8)
    cuda(monkeypatch, gpus=0)
    assert choose_device("auto", 0, 1)[0] == "gloo"
    with pytest.raises(BadRequest, match="1 ranks on this node and 0 GPUs that torch can use"):
        choose_device("nccl", 0, 1)
