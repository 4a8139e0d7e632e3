"""A script around transformers' Trainer: a small GPT-2 from nothing, checkpoints, resume from the last one."""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

EPOCH_STEPS = 16


class Text(torch.utils.data.Dataset):
    """Sequences that count on from a number."""

    def __len__(self) -> int:
        return EPOCH_STEPS * 2 * 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 32) % 64
        return {"input_ids": tokens, "labels": tokens}


class Progress(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if state.is_world_process_zero and state.global_step:
            print(f"resuming at epoch {state.global_step // EPOCH_STEPS}", flush=True)

    def on_save(self, args, state, control, **kwargs) -> None:
        if state.is_world_process_zero:
            print(f"epoch {state.global_step // EPOCH_STEPS - 1} saved", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path())
    options = parser.parse_args()

    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        output_dir=str(options.output),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        save_strategy="epoch",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Text(), callbacks=[Progress()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(options.output)))


if __name__ == "__main__":
    main()
