"""MIG slices by UUID for each worker, with fake device files and a fake ``nvidia-smi``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddp_trainer.launch.host.environment import Launch, prepared_environment, slices_for
from ddp_trainer.launch.protocol.console import LaunchError

SLICES = ("MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d")
LAUNCH = Launch(run_id="r", local_world_size=2, max_restarts=0, virtual_local_rank=True)


def a_node(tmp_path: Path, *uuids: str) -> tuple[Path, dict[str, str]]:
    """Write device files and an ``nvidia-smi`` that lists these slices; return the folder and an environment."""
    caps = tmp_path / "dev" / "nvidia-caps"
    caps.mkdir(parents=True)
    (caps / "nvidia-cap1").touch()
    (tmp_path / "dev" / "nvidia0").touch()
    for place, _ in enumerate(uuids):
        (caps / f"nvidia-cap{30 + place}").touch()
    listed = ["GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c)"]
    listed += [f"  MIG 3g.20gb     Device  {place}: (UUID: {uuid})" for place, uuid in enumerate(uuids)]
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(listed) + "\nEND\n")
    program.chmod(0o755)
    return tmp_path / "dev", {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_each_worker_gets_the_uuid_of_a_slice(tmp_path: Path) -> None:
    devices, environ = a_node(tmp_path, *SLICES)
    assert slices_for(2, environ, one_each=True, devices=devices) == (SLICES, "")
    launch = replace(LAUNCH, slices=SLICES)
    workers = [prepared_environment(environ, launch, local_rank) for local_rank in range(2)]
    assert [worker["CUDA_VISIBLE_DEVICES"] for worker in workers] == list(SLICES)
    assert [worker["LOCAL_RANK"] for worker in workers] == ["0", "0"]
    with pytest.raises(LaunchError, match="the MIG slices of this node are 2"):
        prepared_environment(environ, launch, 2)


def test_whole_gpus_go_by_index(tmp_path: Path) -> None:
    devices, environ = a_node(tmp_path)
    assert slices_for(2, environ, one_each=True, devices=devices) == ((), "")
    assert prepared_environment(environ, LAUNCH, 1)["CUDA_VISIBLE_DEVICES"] == "1"


def test_workers_that_would_share_a_slice_are_a_warning(tmp_path: Path) -> None:
    devices, environ = a_node(tmp_path, *SLICES)
    slices, warning = slices_for(2, environ, one_each=False, devices=devices)
    assert slices == ()
    assert all(words in warning for words in ("2 workers on a node of 2 MIG slices", "--virtual-local-rank"))
    assert slices_for(1, environ, one_each=False, devices=devices) == (SLICES, "")


@pytest.mark.parametrize(("workers", "named"), [(2, "0,1"), (1, "1"), (1, "0,1")])
def test_slices_by_index_are_refused(tmp_path: Path, workers: int, named: str) -> None:
    devices, environ = a_node(tmp_path, *SLICES)
    with pytest.raises(LaunchError) as caught:
        slices_for(workers, {**environ, "CUDA_VISIBLE_DEVICES": named}, one_each=True, devices=devices)
    assert str(caught.value) == (
        f"CUDA_VISIBLE_DEVICES={named} names MIG slices by index, and CUDA shows the first slice of the first GPU "
        "alone; unset it and give --virtual-local-rank, or name slices by the UUIDs of 'nvidia-smi -L'."
    )


def test_slices_by_uuid_stay_as_they_are(tmp_path: Path) -> None:
    devices, environ = a_node(tmp_path, *SLICES)
    named = {**environ, "CUDA_VISIBLE_DEVICES": ",".join(SLICES)}
    assert slices_for(2, named, one_each=True, devices=devices) == ((), "")
    assert prepared_environment(named, LAUNCH, 1)["CUDA_VISIBLE_DEVICES"] == SLICES[1]
