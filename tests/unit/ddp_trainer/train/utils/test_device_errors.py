"""Which of a failed GPU, a lost peer, NCCL's refusal and the user's code an error in a collective is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.gpu_faults import cause_line
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig, GpuFailed, PeerLost, code_of

ECC = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be ...")
TWO_RANKS = (
    "NCCL error: ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
)
FAILED_LAUNCH = "NCCL error: unhandled cuda error\nLast error:\nCuda failure 719 'unspecified launch failure'"
NO_MEMORY = "NCCL ncclUnhandledCudaError\nLast error:\nCuda failure 2 'out of memory'"
REMOTE = (
    "NCCL error in: x.cpp:268, remote process exited\nncclRemoteError: A call failed\nLast error:\nConnection reset"
)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr("ddp_trainer.train.distributed.collective_errors.limit_exit", lambda _: None)
    return Group(1, 2, "nccl", torch.device("cpu"))


def raised_by(group: Group, err: RuntimeError, *, in_pass: bool) -> BaseException:
    with pytest.raises(BaseException) as caught, group.convert_pass_errors() if in_pass else group.convert_errors():  # noqa: PT011
        raise err
    return caught.value


@pytest.mark.parametrize("in_pass", [False, True])
@pytest.mark.parametrize(
    ("err", "kind", "code"),
    [
        (ECC, GpuFailed, Exit.GPU_FAULT),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), GpuFailed, Exit.GPU_FAULT),
        (dist.DistBackendError(FAILED_LAUNCH), GpuFailed, Exit.GPU_FAULT),
        (dist.DistBackendError(TWO_RANKS), BadConfig, Exit.USAGE),
        (dist.DistBackendError(REMOTE), PeerLost, Exit.RENDEZVOUS_LOST),
        (RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.7]:4242, gloo"), PeerLost, Exit.RENDEZVOUS_LOST),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), torch.OutOfMemoryError, Exit.FAILURE),
        (dist.DistBackendError(NO_MEMORY), RuntimeError, Exit.FAILURE),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), torch.AcceleratorError, Exit.FAILURE),
        (NotImplementedError("aten::x on CUDA"), NotImplementedError, Exit.FAILURE),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_an_error_in_a_collective_is_what_it_is(
    group: Group, err: RuntimeError, kind: type[BaseException], code: int, in_pass: bool
) -> None:
    found = raised_by(group, err, in_pass=in_pass)
    assert isinstance(found, kind)
    assert isinstance(found, PeerLost) is (kind is PeerLost)
    assert code_of(found) == code


def test_the_sentence_has_the_rank_cudas_words_and_the_fix(group: Group) -> None:
    sentence = str(raised_by(group, ECC, in_pass=False))
    assert sentence.startswith(
        "Rank 1 cannot use its GPU: CUDA error: uncorrectable ECC error encountered. Fix: cordon"
    )


def test_the_network_of_the_environment_is_named(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NET", "gIB")
    err = dist.DistBackendError("NCCL error: ncclInvalidUsage\nLast error:\nFailed to initialize any NET plugin")
    assert str(raised_by(group, err, in_pass=True)).startswith("Rank 1: NCCL finds no network 'gIB'. Fix: use an image")


def test_an_error_of_cuda_that_the_model_raises_has_the_exit_code_of_a_failed_gpu() -> None:
    assert code_of(ECC) == Exit.GPU_FAULT
    assert code_of(ValueError("CUDA error: uncorrectable ECC error encountered")) == Exit.FAILURE


def test_the_last_error_of_nccl_is_its_sentence() -> None:
    assert cause_line("NCCL error in: x\nncclX: y.\nLast error:\nCuda failure 1 'z'\n") == "Cuda failure 1 'z'"


HANGS_AT_THE_END = """
import sys, time, torch
from ddp_trainer.train.distributed.group import Group
try:
    with Group(0, 1, "none", torch.device("cpu")).convert_pass_errors():
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")
finally:
    time.sleep(600)  # as a synchronization with a GPU that is gone
"""


def test_a_process_whose_gpu_failed_ends_though_its_end_hangs(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    script = "import ddp_trainer.train.distributed.collective_errors as e; e.EXIT_SECONDS = 0.2\n" + HANGS_AT_THE_END
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(file)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == Exit.GPU_FAULT, done.stderr
    assert time.monotonic() - began < 250
    assert "unspecified launch failure" in json.loads(file.read_text())["message"]["message"]
