"""A Lightning script: a module, a data loader, a Trainer that resumes from its last checkpoint."""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Progress(Callback):
    def on_train_start(self, trainer: lightning.Trainer, _module: lightning.LightningModule) -> None:
        if trainer.is_global_zero and trainer.current_epoch:
            print(f"resuming at epoch {trainer.current_epoch}", flush=True)

    def on_train_epoch_start(self, trainer: lightning.Trainer, _module: lightning.LightningModule) -> None:
        if trainer.is_global_zero and trainer.current_epoch:  # by now the checkpoint of the last epoch is written
            print(f"epoch {trainer.current_epoch - 1} done", flush=True)

    def on_fit_end(self, trainer: lightning.Trainer, _module: lightning.LightningModule) -> None:
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch - 1} done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", default=".")
    args = parser.parse_args()

    lightning.seed_everything(0)
    inputs = torch.randn(4096, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=args.epochs,
        default_root_dir=args.output,
        callbacks=[ModelCheckpoint(dirpath=args.output, save_last=True), Progress()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), loader, ckpt_path="last")


if __name__ == "__main__":
    main()
