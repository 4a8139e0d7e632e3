"""Jobs under the image's own torchrun on a cluster (``--launcher torchrun``)."""

from __future__ import annotations

from tests.cluster.live_cluster import Namespace, until

COUNTED = """
import os, time, urllib.request
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(7):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
line = f'ddp_steps_total{{ddp_job="stock",rank="{dist.get_rank()}"}} 7.0'
while line not in urllib.request.urlopen("http://127.0.0.1:9464/metrics").read().decode():
    time.sleep(0.1)
print("counted", dist.get_rank(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
SIZE = ("--nnodes", "2", "--cpu", "200m", "--memory", "400Mi", "--shm", "32Mi", "--engine", "job")


def test_two_nodes_train_under_the_torchrun_of_the_image_and_a_mounted_runtime_counts_their_steps(
    space: Namespace, runtime_image: str
) -> None:
    script = space.home / "train.py"
    script.write_text(COUNTED)
    job = ("--name", "stock", "--image", space.image, "--runtime-image", runtime_image, "--launcher", "torchrun")
    space.ddp("submit", str(script), *job, *SIZE, "--wait").ok()
    lines = space.ddp("logs", "stock", "--rank", "all").ok().out.splitlines()
    assert sorted(line for line in lines if "counted" in line) == ["[rank0] counted 0", "[rank1] counted 1"]
    [row] = [line for line in space.ddp("list").ok().out.splitlines() if line.startswith("stock ")]
    assert row.split()[1:3] == ["Succeeded", "0/2"]
    space.ddp("delete", "stock", "--yes").ok()
    until("all objects of the job are gone", lambda: not space.left())
