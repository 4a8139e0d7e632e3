"""A training script as torch's tutorials write it: DistributedDataParallel, a sampler, a snapshot per epoch."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, snapshot: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.loader = loader
        self.snapshot = snapshot
        self.first_epoch = 0
        if snapshot.exists():
            state = torch.load(snapshot, map_location="cpu", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.first_epoch = state["epoch"] + 1
            print(f"[{self.rank}] resuming from {snapshot.name} at epoch {self.first_epoch}", flush=True)
        self.model = DistributedDataParallel(model)
        self.optimizer = optimizer

    def train(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            loss = self.run_epoch(epoch)
            if self.rank == 0:
                self.save(epoch)
                print(f"epoch {epoch} loss {loss:.4f}", flush=True)

    def run_epoch(self, epoch: int) -> float:
        self.loader.sampler.set_epoch(epoch)
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def save(self, epoch: int) -> None:
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": epoch}
        torch.save(state, self.snapshot.with_suffix(".tmp"))
        self.snapshot.with_suffix(".tmp").replace(self.snapshot)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path())
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    inputs = torch.randn(8192, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    Trainer(model, loader, optimizer, args.output / "snapshot.pt").train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
