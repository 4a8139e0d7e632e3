"""View of ``kubectl ddp top``: a job, its ranks and their recent history, as lines that fit a terminal.

All modules but ``terminal`` and ``watch`` are pure functions from numbers to text.
"""
