"""Tasks and models for ``ddp_trainer train``: handwritten digits, text, and folders of images.

:mod:`ddp_trainer.train.data.task` defines the interface of a task. A task makes its model for ``--model`` by
:mod:`model_registry`. The trainer does not import this package; it finds a task by its name.
"""
