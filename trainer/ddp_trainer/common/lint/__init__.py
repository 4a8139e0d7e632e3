"""Lint of the environment variables of NCCL and torch: rules as data, applied to variables and facts about the node.

The functions are pure and use the standard library only, so both sides can use them. ``ddp-launch`` checks the
environment and the facts of its node. ``kubectl ddp render`` and ``preflight`` check a job before it runs.

::

    variables, Facts ─▶ catalogue.check ─▶ findings
                            └─ RULES: names, values, logging, sockets, rdma, torchs
"""
