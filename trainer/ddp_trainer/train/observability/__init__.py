"""Timing and output of a run: step timer, console, loggers, profiler."""
