"""A probe of a GPU, in real child processes, with a library that stands in for the driver's."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from ddp_trainer.common.gpu_faults import FaultKind, fault_in
from ddp_trainer.process.gpu_probe import NO_DRIVER, command, environment_of, probe_error
from tests.support.fake_driver import compiled


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(compiled(tmp_path_factory.mktemp("driver")))


def probed(library: str, tmp_path: Path, faults: str, *devices: str, seconds: float = 60) -> dict[str, str]:
    (tmp_path / "faults").write_text(faults)
    environ = {**os.environ, "FAKE_GPU_FAULT": str(tmp_path / "faults")}
    found = {device: probe(library, environment_of(device, environ), seconds) for device in devices}
    return {device: trouble for device, trouble in found.items() if trouble}


def probe(library: str, environ: dict[str, str], seconds: float) -> str:
    try:
        done = subprocess.run(
            command(library), env=environ, timeout=seconds, stdout=subprocess.PIPE, text=True, check=False
        )
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
    began = time.monotonic()
    found = probed(library, tmp_path, "0 hang\n", "0", seconds=2)
    assert time.monotonic() - began < 60
    assert found == {"0": "CUDA error: the GPU does not answer within 30 s"}


def test_without_a_driver_there_is_nothing_to_probe(tmp_path: Path) -> None:
    absent = str(tmp_path / "libcuda.so.1")
    assert subprocess.run(command(absent), env=environment_of("0", os.environ), check=False).returncode == NO_DRIVER
    assert probe(absent, environment_of("0", os.environ), 60) == ""
    assert probe_error(NO_DRIVER, "") == ""
