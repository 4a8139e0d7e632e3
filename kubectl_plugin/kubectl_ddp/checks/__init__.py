"""Whether a job can run in a cluster: (job, facts) → findings. Pure; the facts are read by ``cluster``."""
