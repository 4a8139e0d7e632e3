"""Metrics files: memory-mapped files that hold the metrics of one process each."""
