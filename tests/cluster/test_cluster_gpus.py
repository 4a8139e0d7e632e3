"""Pods of a GPU job see their GPU count, environment variables and shared memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubectl_ddp.fabrics.catalog import fabrics
from tests.cluster.live_cluster import Json, Namespace, until

pytestmark = pytest.mark.alone

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
SHM_BYTES = 256 << 20
SMALL = ("--cpu", "200m", "--memory", "1Gi", "--shm", "256Mi")

REPORT = """
import json, os, subprocess, sys

if os.environ["RANK"] == "0":
    import torch
    shm, packages = os.statvfs("/dev/shm"), sys.argv[1:]
    query = ["dpkg-query", "--show", "--showformat", "${Package}\\n", *packages]
    installed = subprocess.run(query, capture_output=True, text=True).stdout.split()
    report = {
        "shm": shm.f_blocks * shm.f_frsize, "environ": dict(os.environ),
        "cuda": torch.version.cuda, "missing": sorted(set(packages) - set(installed)),
    }
    print("report", json.dumps(report), flush=True)
"""


def machine_with_gpus(space: Namespace) -> tuple[int, str]:
    """Return the largest GPU count of a node, and the GPU type."""
    nodes, _ = space.api.items("/api/v1/nodes")
    found = [
        (int(node["status"]["allocatable"].get(GPU, 0)), str(node["metadata"]["labels"].get(PRODUCT, "")))
        for node in nodes
    ]
    count, product = max(found)
    return (
        (count, product) if count and product else pytest.skip("No machine of this cluster has GPUs of a known type.")
    )


def test_a_pod_of_a_gpu_job_has_the_count_the_variables_and_the_shared_memory(space: Namespace, tmp_path: Path) -> None:
    """The CUDA image also has the packages that the fabrics need."""
    count, product = machine_with_gpus(space)
    packages = {name for profile in fabrics().values() for need in profile.needs for name in need.packages}
    script = tmp_path / "report.py"
    script.write_text(REPORT)
    words = ("--name", "gpus", "--image", space.image, "--nnodes", "1", "--gpus", str(count), "--gpu-type", product)
    program = (str(script), "--", "gcc", "g++", *sorted(packages))
    space.ddp("submit", *words, *SMALL, *program, environ={"KUBECTL_DDP_PREFLIGHT": ""}).ok()

    def bound() -> Json | None:
        return next((pod for pod in space.pods() if pod["spec"].get("nodeName")), None)

    pod = until("the pod's machine", bound)
    node = space.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
    [container] = pod["spec"]["containers"]
    assert node["metadata"]["labels"][PRODUCT] == product
    assert (container["resources"]["limits"][GPU], container["resources"]["requests"][GPU]) == (str(count),) * 2
    space.ddp("wait", "gpus", "--for=complete", "--timeout", "120s").ok()

    [line] = [line for line in space.ddp("logs", "gpus").ok().out.splitlines() if " report " in f" {line}"]
    report = json.loads(line.partition("report ")[2])
    assert report["shm"] == SHM_BYTES
    assert report["cuda"] is None or report["missing"] == []
    inside = report["environ"]
    assert (inside["WORLD_SIZE"], inside["LOCAL_WORLD_SIZE"]) == (str(count), str(count))
    given = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    nccl = {name for name in given if name.startswith(("NCCL_", "TORCH_NCCL_"))}
    assert nccl, "a job with GPUs talks by NCCL"
    assert {name: inside.get(name) for name in nccl} == {name: given[name] for name in nccl}
    assert inside["OMP_NUM_THREADS"] == given["OMP_NUM_THREADS"]
    space.ddp("delete", "gpus", "--yes").ok()
