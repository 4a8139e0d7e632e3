"""Observation of a running job through its backend: metrics, logs, waiting, profiles, support archive."""
