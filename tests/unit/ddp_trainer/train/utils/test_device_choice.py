"""Which device a rank takes, by fake device files and a fake driver: a missing GPU is never silently a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from ddp_trainer.common.constants import Exit
from ddp_trainer.train.config.option_values import DeviceName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.device_selection import Driver, choose_device
from ddp_trainer.train.utils.errors import BadConfig, GpuFailed, TrainError

OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading "
    "and installing a new version"
)


@dataclass
class FakeDriver(Driver):
    """CUDA as it reports GPUs, or its trouble."""

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
    return Environment(
        rank=local_rank,
        local_rank=local_rank,
        world_size=local_world,
        local_world_size=local_world,
        host="node-b",
        visible_devices={"PATH": "", **variables},
    )


def refused(driver: FakeDriver, env: Environment, files: Path, requested: DeviceName = DeviceName.AUTO) -> TrainError:
    with pytest.raises(TrainError) as caught:
        choose_device(requested, env, driver, files)
    assert not driver.taken
    return caught.value


def test_each_rank_takes_the_gpu_of_its_local_rank(tmp_path: Path) -> None:
    driver = FakeDriver(gpus=8)
    chosen = [choose_device(DeviceName.AUTO, here(rank, 8), driver, devices(tmp_path, 8)) for rank in range(8)]
    assert chosen == [torch.device("cuda", rank) for rank in range(8)]
    assert driver.taken == list(range(8))


def test_a_worker_that_sees_its_own_gpu_alone_takes_it(tmp_path: Path) -> None:
    env = Environment(
        rank=5, local_rank=0, world_size=8, local_world_size=8, visible_devices={"CUDA_VISIBLE_DEVICES": "5"}
    )
    assert choose_device(DeviceName.AUTO, env, FakeDriver(gpus=1), devices(tmp_path, 8)) == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("driver", "files", "variables"),
    [
        (FakeDriver(), 0, {}),
        (FakeDriver(), 8, {"CUDA_VISIBLE_DEVICES": ""}),
        (FakeDriver(cuda=""), 8, {}),
    ],
    ids=["no GPU", "GPUs are hidden", "torch without CUDA"],
)
def test_the_cpu_is_taken_where_no_gpu_is_meant(
    tmp_path: Path, driver: FakeDriver, files: int, variables: dict[str, str]
) -> None:
    env = here(1, 2, **variables)
    assert choose_device(DeviceName.AUTO, env, driver, devices(tmp_path, files)).type == "cpu"
    assert isinstance(refused(driver, env, tmp_path, DeviceName.CUDA), BadConfig)


def test_a_gpu_off_the_bus_is_a_fault_that_names_the_node(tmp_path: Path) -> None:
    err = refused(FakeDriver(gpus=7), here(7, 8), devices(tmp_path, 8))
    assert isinstance(err, GpuFailed)
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
def test_cudas_own_words_and_the_fix_are_told(tmp_path: Path, words: str, fix: str) -> None:
    err = refused(FakeDriver(words=words), here(0, 8), devices(tmp_path, 8))
    assert isinstance(err, GpuFailed)
    assert "node-b finds 0 of 8 GPUs" in err.message
    assert err.message.endswith(f": {words.partition('. ')[0]}.")
    assert ("is built for CUDA 13.0" in err.message) is (words == OLD)
    assert fix in err.hint


def test_a_gpu_that_cannot_be_taken_is_a_fault(tmp_path: Path) -> None:
    driver = FakeDriver(gpus=8, broken="CUDA error: uncorrectable ECC error encountered")
    err = refused(driver, here(3, 8), devices(tmp_path, 8))
    assert isinstance(err, GpuFailed)
    assert err.message.startswith("Rank 3 on node-b cannot use GPU 3: CUDA error: uncorrectable ECC error encountered")


@pytest.mark.parametrize("requested", [DeviceName.AUTO, DeviceName.CUDA])
def test_more_ranks_than_gpus_are_refused(tmp_path: Path, requested: DeviceName) -> None:
    err = refused(FakeDriver(gpus=4), here(6, 8), devices(tmp_path, 4), requested)
    assert isinstance(err, BadConfig)
    assert err.exit_code == Exit.USAGE
    assert err.message == "Rank 6 has no GPU: node-b has 4 GPUs for 8 ranks."
    assert "--nproc-per-node gpu" in err.hint
    hidden = refused(FakeDriver(gpus=1), here(1, 2, CUDA_VISIBLE_DEVICES="3"), devices(tmp_path, 4), requested)
    assert hidden.message == "Rank 1 has no GPU: node-b has 1 GPU (CUDA_VISIBLE_DEVICES='3') for 2 ranks."


def test_slices_of_a_gpu_need_a_worker_each(tmp_path: Path) -> None:
    err = refused(FakeDriver(gpus=1), here(1, 2, CUDA_VISIBLE_DEVICES="MIG-a,MIG-b"), devices(tmp_path, 1))
    assert isinstance(err, BadConfig)
    assert err.message == "The 2 ranks on node-b share 2 MIG slices, of which CUDA shows a process one."
    assert "--virtual-local-rank" in err.hint


def test_torch_without_cuda_reports_none() -> None:
    driver = Driver()
    if driver.cuda:
        pytest.skip("this torch has CUDA")
    assert driver.count() == 0
    assert "not compiled with CUDA" in driver.init_error()


def test_the_environment_names_the_kubernetes_node() -> None:
    assert Environment.from_environ({"DDP_NODE_NAME": "gpu-7", "CUDA_VISIBLE_DEVICES": "0"}).host == "gpu-7"
    assert Environment.from_environ({"CUDA_VISIBLE_DEVICES": "0"}).visible_devices == {"CUDA_VISIBLE_DEVICES": "0"}
