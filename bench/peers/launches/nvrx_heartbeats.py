"""``ft_launcher`` of nvidia-resiliency-ext with a script that sends heartbeats."""

from __future__ import annotations

import dataclasses

from bench.peers.launches import nvrx_launcher
from bench.peers.peer import Command, Job


def node(job: Job, place: int) -> Command:
    """Return the agent; its monitor kills a rank without heartbeats."""
    timeout = 3 if job.fast else 60
    return nvrx_launcher.node(
        job, place, "--ft-initial-rank-heartbeat-timeout=60", f"--ft-rank-heartbeat-timeout={timeout}"
    )


PEER = dataclasses.replace(
    nvrx_launcher.PEER,
    title="ft_launcher+heartbeats",
    node=node,
    loop="nvrx_heartbeats.py",
    needs_change=True,
    settings="as above, and `--ft-rank-heartbeat-timeout 3`, `--ft-workload-check-interval 0.5`",
    source="https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/integration/heartbeats.html",
)
