"""Evaluation on all ranks, early stopping, and the report of a task."""
