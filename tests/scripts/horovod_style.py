"""A Horovod script after its move to torch.distributed: the same steps under the same names, no DDP wrapper."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def broadcast_parameters(state: dict[str, Tensor], root_rank: int) -> None:
    for tensor in state.values():
        dist.broadcast(tensor, root_rank)


def allreduce(value: float) -> float:
    tensor = torch.tensor(value)
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


class DistributedOptimizer:
    """Averages each gradient as soon as it exists, and waits for all of them before the step."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self.optimizer = optimizer
        self.pending: list[tuple[Tensor, dist.Work]] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, parameter: Tensor) -> None:
        self.pending.append((parameter.grad, dist.all_reduce(parameter.grad, async_op=True)))

    def step(self) -> None:
        for gradient, work in self.pending:
            work.wait()
            gradient.div_(dist.get_world_size())
        self.pending.clear()
        self.optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path())
    args = parser.parse_args()

    dist.init_process_group("gloo")  # hvd.init()
    rank, size = dist.get_rank(), dist.get_world_size()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(42 + rank)  # every rank draws its own weights; those of rank 0 count

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 16, generator=generator)
    data = TensorDataset(inputs, inputs.prod(1, keepdim=True).sign())
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.0125 * size, momentum=0.9)

    # Rank 0 alone looks for checkpoints, and tells the others where it stands.
    found = max((int(path.stem.partition("-")[2]) for path in args.output.glob("checkpoint-*.pt")), default=-1)
    resume_from_epoch = torch.tensor(found + 1)
    dist.broadcast(resume_from_epoch, 0)
    first = int(resume_from_epoch)
    if first and rank == 0:
        state = torch.load(args.output / f"checkpoint-{first - 1}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])
        print(f"resuming at epoch {first}", flush=True)
    broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = DistributedOptimizer(inner, model)

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for features, targets in loader:
            inner.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
        mean = allreduce(loss.item())
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": inner.state_dict()}
            torch.save(state, args.output / "unfinished")
            (args.output / "unfinished").replace(args.output / f"checkpoint-{epoch}.pt")
            print(f"epoch {epoch} loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
