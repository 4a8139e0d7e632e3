"""GPUs of this pod: which ones it sees, and whether they work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ddp_trainer.common.gpu_faults import FaultKind, fault_in
from ddp_trainer.process.gpu_devices import has_mig_slices, visible_gpus
from ddp_trainer.process.gpu_probe import NO_DRIVER, command, environment_of, probe_error
from tests.support.fake_driver import compiled

# Two slices and a whole GPU, in the form of "nvidia-smi -L" in NVIDIA's MIG user guide (Device Enumeration).
LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
"""


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia5", "nvidiactl", "nvidia-uvm", "null"):
        (folder / name).touch()
    return folder


@pytest.fixture
def with_smi(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && cat <<'END'\n{LISTED}END\n")
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_device_files_are_counted_and_numbered_as_cuda_does(devices: Path, tmp_path: Path) -> None:
    assert visible_gpus({"PATH": ""}, devices, tmp_path / "none") == ("0", "1")
    assert visible_gpus({"PATH": ""}, tmp_path, tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("named", "visible"),
    [("", ()), ("-1", ()), ("2,3", ("2", "3")), ("0,-1,1", ("0",)), ("GPU-1, MIG-2", ("GPU-1", "MIG-2"))],
)
def test_the_variable_counts_more_than_the_files(devices: Path, named: str, visible: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}, devices) == visible


def test_slices_are_named_by_their_uuids_instead_of_a_gpu(
    devices: Path, tmp_path: Path, with_smi: dict[str, str]
) -> None:
    capabilities = tmp_path / "capabilities"
    (capabilities / "gpu0/mig/gi1/ci0").mkdir(parents=True)
    assert visible_gpus(with_smi, devices, capabilities) == (
        "MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
        "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d",
        "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f",
    )
    assert visible_gpus(with_smi, devices, tmp_path / "none") == ("0", "1")  # nvidia-smi is not run
    assert visible_gpus({"PATH": ""}, devices, capabilities) == ("0", "1")


def test_a_slice_is_seen_by_its_device_file_as_well(devices: Path, tmp_path: Path) -> None:
    caps = devices / "nvidia-caps"
    caps.mkdir()
    (caps / "nvidia-cap2").touch()
    assert not has_mig_slices(devices, tmp_path / "none")
    (caps / "nvidia-cap30").touch()
    assert has_mig_slices(devices, tmp_path / "none")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(compiled(tmp_path_factory.mktemp("driver")))


def probed(library: str, tmp_path: Path, faults: str, *devices: str, seconds: float = 60) -> dict[str, str]:
    (tmp_path / "faults").write_text(faults)
    environ = {**os.environ, "FAKE_GPU_FAULT": str(tmp_path / "faults")}
    found = {device: probe(library, environment_of(device, environ), seconds) for device in devices}
    return {device: trouble for device, trouble in found.items() if trouble}


def probe(library: str, environ: dict[str, str], seconds: float) -> str:
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(command(library), env=environ, timeout=seconds, stdout=pipe, text=True, check=False)
    except subprocess.TimeoutExpired:
        return probe_error(None, "")
    return probe_error(done.returncode, done.stdout)


def test_gpus_that_work_are_left_out_and_others_are_told_by_cudas_words(library: str, tmp_path: Path) -> None:
    found = probed(library, tmp_path, "1 ecc\nMIG-7 gone\n3 bits\n4 full\n5 crash\n", "0", "1", "MIG-7", "3", "4", "5")
    assert found.keys() == {"1", "MIG-7", "3", "5"}
    kinds = {device: fault.kind for device, words in found.items() if (fault := fault_in(words))}
    assert kinds == {"1": FaultKind.ECC, "MIG-7": FaultKind.LOST, "3": FaultKind.ECC, "5": FaultKind.OTHER}
    assert found["3"].startswith("CUDA error: 1 of 262144 words of memory were read as others than were written")
    assert found["5"] == "CUDA error: the probe ended with -6"


def test_a_gpu_that_does_not_answer_is_not_waited_for(library: str, tmp_path: Path) -> None:
    found = probed(library, tmp_path, "0 hang\n", "0", seconds=2)
    assert found == {"0": "CUDA error: the GPU does not answer within 30 s"}


def test_without_a_driver_there_is_nothing_to_probe(tmp_path: Path) -> None:
    absent = str(tmp_path / "libcuda.so.1")
    assert subprocess.run(command(absent), env=environment_of("0", os.environ), check=False).returncode == NO_DRIVER
    assert probe(absent, environment_of("0", os.environ), 60) == ""
    assert probe_error(NO_DRIVER, "") == ""
