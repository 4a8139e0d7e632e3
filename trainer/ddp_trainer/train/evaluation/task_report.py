"""Report of a trained model by its task."""

from __future__ import annotations

import torch
from torch import nn

from ddp_trainer.train.data.task import SupportsShow, Task


def model_report(task: Task, model: nn.Module) -> str | None:
    """Return the task's report on the model; None if the task has none. An error becomes the report."""
    if not isinstance(task, SupportsShow):
        return None
    trains = model.training
    model.eval()
    try:
        with torch.no_grad():
            return task.show(model)
    except Exception as err:  # noqa: BLE001 - the user's code may raise anything, and the run is over and saved
        return f"What was learnt could not be shown: {err!r}."
    finally:
        model.train(trains)
