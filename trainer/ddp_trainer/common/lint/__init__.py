"""What is doubtful in the environment of NCCL and torch: rules as data, applied to variables and what is known beside.

Pure, and standard library only, so that both sides use it: ``ddp-launch`` on the environment that it finds and the
facts of its node, ``kubectl ddp lint`` on a job before it runs anywhere.

::

    variables, Facts ─▶ catalogue.check ─▶ findings
                            └─ RULES: names, values, logging, sockets, rdma, torchs
"""
