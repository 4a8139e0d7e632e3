"""A plain DDP script in which one rank is late in each step: ``late.py data|forward|backward|never RANK``.

What takes time sleeps, so that many ranks may share a core.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEP_SECONDS = 0.1
LATE_SECONDS = 0.4


def late(place):
    """Return the delay of this rank at ``place``, in seconds."""
    return LATE_SECONDS if [place, os.environ["RANK"]] == sys.argv[1:3] else 0.0


class Samples(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(late("data"))
        return torch.full((4,), float(index % 7)), torch.zeros(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, inputs):
        time.sleep(STEP_SECONDS + late("forward"))
        hidden = self.first(inputs)
        if hidden.requires_grad:
            hidden.register_hook(lambda _: time.sleep(late("backward")))
        return self.second(hidden)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step, (inputs, targets) in enumerate(DataLoader(Samples(), batch_size=1)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if step == 0:
            print(f"first step at {time.time():.3f}", flush=True)


if __name__ == "__main__":
    main()
