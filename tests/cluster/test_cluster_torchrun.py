"""Jobs under the image's own torchrun on a cluster (``--launcher torchrun``)."""

from __future__ import annotations

from tests.cluster.live_cluster import Namespace, until

TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
print("trained", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""
SIZE = ("--nnodes", "2", "--cpu", "200m", "--memory", "400Mi", "--shm", "32Mi", "--engine", "job")


def test_two_nodes_train_under_the_torchrun_of_the_image(space: Namespace) -> None:
    script = space.home / "train.py"
    script.write_text(TRAIN)
    job = ("--name", "stock", "--image", space.image, "--launcher", "torchrun")
    space.ddp("submit", str(script), *job, *SIZE, "--wait").ok()
    lines = space.ddp("logs", "stock", "--rank", "all").ok().out.splitlines()
    assert sorted(line for line in lines if "trained" in line) == ["[rank0] trained 0 of 2", "[rank1] trained 1 of 2"]
    [told] = [line for line in space.ddp("list").ok().out.splitlines() if line.startswith("stock ")]
    assert told.split()[1:3] == ["Succeeded", "0/2"]
    space.ddp("delete", "stock", "--yes").ok()
    until("all objects of the job are gone", lambda: not space.left())
