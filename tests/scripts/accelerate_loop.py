"""An Accelerate script: a hand-written loop, prepared objects, save_state and load_state."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path())
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    inputs = torch.randn(4096, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    saved = sorted(args.output.glob("epoch-*/complete"), key=lambda path: int(path.parent.name.partition("-")[2]))
    first = 0
    if saved:
        accelerator.load_state(str(saved[-1].parent))
        first = int(saved[-1].parent.name.partition("-")[2]) + 1
        accelerator.print(f"resuming at epoch {first}", flush=True)

    for epoch in range(first, args.epochs):
        model.train()
        for features, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
        folder = args.output / f"epoch-{epoch}"
        accelerator.save_state(str(folder))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (folder / "complete").touch()
        accelerator.print(f"epoch {epoch} loss {accelerator.reduce(loss, 'mean').item():.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
