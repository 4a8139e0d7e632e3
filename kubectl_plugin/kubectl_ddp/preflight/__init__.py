"""Checks if a job can run in a cluster: (job, facts) → findings. Pure functions; ``cluster`` reads the facts."""
