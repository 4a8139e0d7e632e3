"""Trains a function on two ranks of this machine, and prints what each rank wrote: a script of the Python client."""

from __future__ import annotations

import contextlib
import math

import torch
import torch.distributed as dist

from kubectl_ddp import Client, Job
from kubectl_ddp.errors import JobFailed


def train(steps: int, scale: float = 1.0) -> None:
    dist.init_process_group("gloo")
    total = torch.zeros(1)
    for step in range(steps):
        total += scale * math.pow(dist.get_rank() + 1, step)
        dist.all_reduce(total)
    print(f"total {total.item():g}", flush=True)
    dist.destroy_process_group()


def totals_of(job: Job) -> dict[int | None, str]:
    with contextlib.closing(job.logs("all", follow=True)) as lines:
        return {line.rank: line.message for line in lines if line.message.startswith("total")}


def main() -> None:
    client = Client(local=True)
    job = client.submit(train, arguments={"steps": 1, "scale": 2.0}, nproc=2)
    totals = totals_of(job)
    try:
        print(job.wait(60).state, totals[0], totals[1])
    except JobFailed as error:
        print(error.message, error.hint)
    print(job.report(f"{job.name}.html").name == f"{job.name}.html")
    job.delete(wait=True)
    print([state.name for state in client.list()])


if __name__ == "__main__":
    main()
