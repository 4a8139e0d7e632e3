"""Rules about the environment variables of NCCL and torch that make a run fail, hang or compute wrong results.

``kubectl ddp render`` and ``preflight`` apply them to a job, beside rules of their own. ``ddp-launch`` applies them to
its own environment, with the facts of its node. Standard library only.
"""
