"""GPUs that a process is meant to use, by fake device files and a fake ``nvidia-smi``."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.process.gpu_devices import has_mig_slices, visible_gpus

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


def test_slices_are_named_by_their_uuids_and_their_gpu_is_not(
    devices: Path, tmp_path: Path, with_smi: dict[str, str]
) -> None:
    capabilities = tmp_path / "capabilities"
    (capabilities / "gpu0/mig/gi1/ci0").mkdir(parents=True)
    assert visible_gpus(with_smi, devices, capabilities) == (
        "MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
        "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d",
        "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f",
    )
    assert visible_gpus(with_smi, devices, tmp_path / "none") == ("0", "1")  # nobody is asked without a slice
    assert visible_gpus({"PATH": ""}, devices, capabilities) == ("0", "1")


def test_a_slice_is_seen_by_its_device_file_as_well(devices: Path, tmp_path: Path) -> None:
    caps = devices / "nvidia-caps"
    caps.mkdir()
    (caps / "nvidia-cap1").touch()
    (caps / "nvidia-cap2").touch()
    assert not has_mig_slices(devices, tmp_path / "none")
    (caps / "nvidia-cap30").touch()
    assert has_mig_slices(devices, tmp_path / "none")
