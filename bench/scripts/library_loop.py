"""A few steps with one of the libraries whose threads live until the process exits: ``library_loop.py LIBRARY CODE``.

All data and models are made here; nothing is downloaded.
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

ROWS = 256


def regression() -> tuple[nn.Module, DataLoader]:
    """Return a model and its data."""
    inputs = torch.randn(ROWS, 16)
    return nn.Linear(16, 1), DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)


def plain() -> None:
    """Train with DistributedDataParallel alone."""
    torch.distributed.init_process_group("gloo")
    model, loader = regression()
    model = nn.parallel.DistributedDataParallel(model)
    for inputs, targets in loader:
        mse_loss(model(inputs), targets).backward()
    torch.distributed.destroy_process_group()


def local_sgd() -> None:
    """Train as Accelerate's ``local_sgd.py``."""
    import datasets  # noqa: F401 - as that script does
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    model, loader = regression()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=4, enabled=True) as local:
        for inputs, targets in loader:
            accelerator.backward(mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            local.step()


def metrics() -> None:
    """Evaluate as Accelerate's ``multi_process_metrics.py``: text through Arrow, tokenizers and a collate function."""
    import datasets
    from accelerate import Accelerator
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"a": 0, "b": 1, "c": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        texts = datasets.Dataset.from_dict({"text": ["a b c b"] * ROWS, "label": [0, 1] * (ROWS // 2)})
        ids = texts.map(
            lambda rows: {"ids": [tokens.ids for tokens in tokenizer.encode_batch(rows["text"])]}, batched=True
        )
    model = nn.Sequential(nn.Embedding(len(words), 8), nn.Flatten(), nn.Linear(32, 2))
    model, loader = accelerator.prepare(
        model, DataLoader(ids.select_columns(["ids", "label"]).with_format("torch"), 16)
    )
    for batch in loader:
        accelerator.gather_for_metrics((model(batch["ids"]).argmax(1), batch["label"]))


def trainer(folder: str) -> None:
    """Train a tiny GPT-2 with transformers' Trainer."""
    import datasets
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    data = datasets.Dataset.from_dict({name: [list(range(16))] * 64 for name in ("input_ids", "labels")})
    arguments = TrainingArguments(
        output_dir=folder, max_steps=4, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True
    )
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=data).train()


def fit(folder: str) -> None:
    """Train with Lightning."""
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loader = regression()

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            return mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    flags = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
    module = Regression()
    lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, **flags).fit(
        module, module.loader
    )


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        loops = {
            "torch": plain,
            "local_sgd": local_sgd,
            "metrics": metrics,
            "transformers": partial(trainer, folder),
            "lightning": partial(fit, folder),
        }
        loops[sys.argv[1]]()
        Path(folder, "done").touch()
    print("the last line", flush=True)
    sys.exit(int(sys.argv[2]))
