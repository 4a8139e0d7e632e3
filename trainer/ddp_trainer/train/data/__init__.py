"""Data of a run: the task, the order of its samples, batches, and keyed random numbers."""
