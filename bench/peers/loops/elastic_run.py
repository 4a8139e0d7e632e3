"""The plain loop, with ``elastic.run``."""

import loop_parts
import torch
from torch.utils.data import TensorDataset

from ddp_trainer import elastic

CHECKPOINT = loop_parts.FOLDER / "checkpoints"


def main() -> None:
    """Train."""
    model, optimizer = loop_parts.build()
    trace = loop_parts.Trace()
    last = None
    with elastic.run(
        model,
        optimizer,
        TensorDataset(torch.arange(loop_parts.SAMPLES)),
        global_batch=loop_parts.BATCH,
        batch_slices=2,
        epochs=1_000_000,
        max_steps=loop_parts.STEPS,
        checkpoint_dir=CHECKPOINT,
        checkpoint_steps=loop_parts.SAVE_STEPS,
    ) as job:
        for step in job:
            if last is not None and job.step > last:
                trace.commit(job.step, job.rank, job.world_size, model)
            last = job.step
            loop_parts.hang_if_requested()
            for (ids,) in step:
                step.backward(model(ids))
    if last is not None and job.step > last:
        trace.commit(job.step, job.rank, job.world_size, model)


if __name__ == "__main__":
    main()
