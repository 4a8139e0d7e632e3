"""``capacity`` of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubectl_ddp.backends.local import capacity_reader
from kubectl_ddp.capacity import GPU, node_capacities
from tests.support.programs import captured


def test_this_machine_is_told_with_its_cores_and_memory() -> None:
    done = captured(
        [sys.executable, "-m", "kubectl_ddp", "capacity", "--local", "-o", "json"], check=True, stdin=subprocess.DEVNULL
    )
    document = json.loads(done.stdout)
    [machine] = document["machines"]
    assert (document["kind"], document["where"], document["unread"]) == ("Capacity", "local", [])
    assert machine["cpu_cores"] == len(os.sched_getaffinity(0))
    assert 0 < machine["memory_bytes_free"] < machine["memory_bytes"]


SMI = """#!/bin/sh
case "$1" in
--query-gpu=uuid,name) printf 'GPU-a, NVIDIA H100 80GB HBM3\\nGPU-b, NVIDIA H100 80GB HBM3\\n' ;;
--query-compute-apps=gpu_uuid) printf 'GPU-b\\nGPU-b\\n' ;;
*) exit 2 ;;
esac
"""


def test_gpus_on_which_a_program_computes_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has none answers in the words of one that has."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    [node] = node_capacities(capacity_reader.read()) or ()
    assert (node.gpu_type, node.machine.allocatable[GPU]) == ("NVIDIA-H100-80GB-HBM3", 2000)
    assert node.free is not None
    assert node.free[GPU] == 1000
