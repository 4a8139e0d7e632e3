"""Built-in tasks. :mod:`ddp_trainer.train.data.task` defines the interface of a task."""
