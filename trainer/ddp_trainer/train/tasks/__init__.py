"""The tasks that come with the trainer; :mod:`ddp_trainer.train.data.task` says what a task is."""
