"""The embedded engine: runs a rendered job on this machine, operator and kubelet in one small process per job.

``backend`` is what commands talk to; it edits a job's desired state in files, as one edits objects of an API server.
``engine`` is the detached process that makes the files true, and writes what became of them.
"""
