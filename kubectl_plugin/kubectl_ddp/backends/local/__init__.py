"""Embedded engine that runs a rendered job on this machine, with operator and kubelet in one small process per job.

Commands use ``backend``, which edits a job's desired state in files, as a client edits objects of an API server.
``engine`` is the detached process that applies the desired state and writes the job's status.
"""
