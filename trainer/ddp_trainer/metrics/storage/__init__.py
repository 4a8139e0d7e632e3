"""Boards: files in memory that hold the metrics of one process."""
