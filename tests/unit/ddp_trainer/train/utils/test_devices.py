"""The device of a rank, and the kind of each of its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.gpu_faults import cause_line
from ddp_trainer.train.config.option_values import DeviceName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.device_selection import Driver, choose_device
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig, GpuFailed, PeerLost, TrainError, code_of, write_error_file

OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading "
    "and installing a new version"
)


@dataclass
class FakeDriver(Driver):
    """A driver with given GPUs and errors."""

    gpus: int = 0
    words: str = ""
    cuda: str = "13.0"
    broken: str = ""
    taken: list[int] = field(default_factory=list)

    def count(self) -> int:
        return self.gpus

    def take(self, index: int) -> None:
        if self.broken:
            raise torch.AcceleratorError(self.broken)
        self.taken.append(index)

    def init_error(self) -> str:
        return self.words


def devices(tmp_path: Path, count: int) -> Path:
    for number in range(count):
        (tmp_path / f"nvidia{number}").touch()
    return tmp_path


def here(local_rank: int, local_world: int, **variables: str) -> Environment:
    place = {"local_rank": local_rank, "world_size": local_world, "local_world_size": local_world}
    return Environment(rank=local_rank, host="node-b", visible_devices={"PATH": "", **variables}, **place)


def refused(
    kind: type[TrainError], driver: Driver, env: Environment, files: Path, requested: DeviceName = DeviceName.AUTO
) -> TrainError:
    with pytest.raises(kind) as caught:
        choose_device(requested, env, driver, files)
    assert not driver.taken
    return caught.value


def test_each_rank_takes_the_gpu_of_its_local_rank(tmp_path: Path) -> None:
    driver = FakeDriver(gpus=8)
    chosen = [choose_device(DeviceName.AUTO, here(rank, 8), driver, devices(tmp_path, 8)) for rank in range(8)]
    assert chosen == [torch.device("cuda", rank) for rank in range(8)]
    assert driver.taken == list(range(8))


def test_a_worker_that_sees_its_own_gpu_alone_takes_it(tmp_path: Path) -> None:
    env = here(0, 8, CUDA_VISIBLE_DEVICES="5")
    assert choose_device(DeviceName.AUTO, env, FakeDriver(gpus=1), devices(tmp_path, 8)) == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("driver", "files", "variables"),
    [(FakeDriver(), 0, {}), (FakeDriver(), 8, {"CUDA_VISIBLE_DEVICES": ""}), (FakeDriver(cuda=""), 8, {})],
    ids=["no GPU", "GPUs are hidden", "torch without CUDA"],
)
def test_the_cpu_is_the_fallback(tmp_path: Path, driver: FakeDriver, files: int, variables: dict[str, str]) -> None:
    env = here(1, 2, **variables)
    assert choose_device(DeviceName.AUTO, env, driver, devices(tmp_path, files)).type == "cpu"
    refused(BadConfig, driver, env, tmp_path, DeviceName.CUDA)


def test_a_gpu_off_the_bus_is_a_fault_that_names_the_node(tmp_path: Path) -> None:
    err = refused(GpuFailed, FakeDriver(gpus=7), here(7, 8), devices(tmp_path, 8))
    assert err.exit_code == Exit.GPU_FAULT
    assert str(err) == (
        "Rank 7 on node-b finds 7 of 8 GPUs: CUDA reports 7, and no reason. Fix: start at most one worker per GPU; "
        "where a GPU is missing, look for 'Xid' in the kernel log."
    )


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (OLD, "update the NVIDIA driver of the node"),
        ("CUDA error: system not yet initialized", "start nvidia-fabricmanager"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "needs a reboot"),
    ],
)
def test_cudas_own_words_and_the_fix_are_in_the_error(tmp_path: Path, words: str, fix: str) -> None:
    err = refused(GpuFailed, FakeDriver(words=words), here(0, 8), devices(tmp_path, 8))
    assert "node-b finds 0 of 8 GPUs" in err.message
    assert err.message.endswith(f": {words.partition('. ')[0]}.")
    assert ("is built for CUDA 13.0" in err.message) is (words == OLD)
    assert fix in err.hint


def test_a_gpu_that_cannot_be_taken_is_a_fault(tmp_path: Path) -> None:
    driver = FakeDriver(gpus=8, broken="CUDA error: uncorrectable ECC error encountered")
    err = refused(GpuFailed, driver, here(3, 8), devices(tmp_path, 8))
    assert err.message.startswith("Rank 3 on node-b cannot use GPU 3: CUDA error: uncorrectable ECC error encountered")


@pytest.mark.parametrize("requested", [DeviceName.AUTO, DeviceName.CUDA])
def test_more_ranks_than_gpus_are_refused(tmp_path: Path, requested: DeviceName) -> None:
    err = refused(BadConfig, FakeDriver(gpus=4), here(6, 8), devices(tmp_path, 4), requested)
    assert err.exit_code == Exit.USAGE
    assert err.message == "Rank 6 has no GPU: node-b has 4 GPUs for 8 ranks."
    assert "--nproc-per-node gpu" in err.hint
    env = here(1, 2, CUDA_VISIBLE_DEVICES="3")
    hidden = refused(BadConfig, FakeDriver(gpus=1), env, devices(tmp_path, 4), requested)
    assert hidden.message == "Rank 1 has no GPU: node-b has 1 GPU (CUDA_VISIBLE_DEVICES='3') for 2 ranks."


def test_slices_of_a_gpu_need_a_worker_each(tmp_path: Path) -> None:
    env = here(1, 2, CUDA_VISIBLE_DEVICES="MIG-a,MIG-b")
    err = refused(BadConfig, FakeDriver(gpus=1), env, devices(tmp_path, 1))
    assert err.message == "The 2 ranks on node-b share 2 MIG slices, of which CUDA shows a process one."
    assert "--virtual-local-rank" in err.hint


def test_the_environment_names_the_kubernetes_node() -> None:
    assert Environment.from_env({"DDP_NODE_NAME": "gpu-7", "CUDA_VISIBLE_DEVICES": "0"}).host == "gpu-7"
    assert Environment.from_env({"CUDA_VISIBLE_DEVICES": "0"}).visible_devices == {"CUDA_VISIBLE_DEVICES": "0"}


ECC = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be ...")
TWO_RANKS = "NCCL error: ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 on CUDA device 10"
FAILED_LAUNCH = "NCCL error: unhandled cuda error\nLast error:\nCuda failure 719 'unspecified launch failure'"
NO_MEMORY = "NCCL ncclUnhandledCudaError\nLast error:\nCuda failure 2 'out of memory'"
REMOTE = "NCCL error in: x.cpp:268, remote process exited\nncclRemoteError: A call failed\nLast error:\nreset"


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
def test_errors_have_kind_and_code(group: Group, err: RuntimeError, kind: type[Any], code: int, in_pass: bool) -> None:
    found = raised_by(group, err, in_pass=in_pass)
    assert isinstance(found, kind)
    assert isinstance(found, PeerLost) is (kind is PeerLost)
    assert code_of(found) == code


def test_the_sentence_has_the_rank_cudas_words_and_the_fix(group: Group) -> None:
    words = "Rank 1 cannot use its GPU: CUDA error: uncorrectable ECC error encountered. Fix: cordon"
    assert str(raised_by(group, ECC, in_pass=False)).startswith(words)


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
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(file)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, timeout=300, check=False)
    assert done.returncode == Exit.GPU_FAULT, done.stderr
    assert time.monotonic() - began < 250
    assert "unspecified launch failure" in json.loads(file.read_text())["message"]["message"]


def test_an_error_file_that_cannot_be_written_is_no_second_error(tmp_path: Path) -> None:
    write_error_file(Path("/proc/nowhere/error.json"), ValueError("x"))
    write_error_file(None, ValueError("x"))
    write_error_file(tmp_path / "new" / "error.json", ValueError("x"))
    assert json.loads((tmp_path / "new" / "error.json").read_text())["message"]["message"] == "ValueError: x"
