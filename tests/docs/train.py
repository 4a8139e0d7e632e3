"""The script that the documents call train.py: torch and torchrun's environment, nothing of this project."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = (model(torch.ones(8, 4)) - 1).square().mean()
    loss.backward()
    optimizer.step()
print(f"5 steps of rank {dist.get_rank()}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
