"""The in-process wrapper of nvidia-resiliency-ext, under its own launcher."""

from __future__ import annotations

import dataclasses

from bench.peers.launches import nvrx_launcher
from bench.peers.peer import Command, Job


def node(job: Job, place: int) -> Command:
    """Return the agent, with the policy that its documents name for the wrapper.

    No node can join later under this policy, so the first group waits longer for the second node.
    """
    command = nvrx_launcher.node(job, place, "min-healthy", last_call=15)
    return Command(command.arguments, {"BENCH_STORE_PORT": str(job.ports[1]), "BENCH_FAST": str(int(job.fast))})


PEER = dataclasses.replace(
    nvrx_launcher.PEER,
    title="nvidia-resiliency-ext, in-process",
    node=node,
    loop="nvrx_inprocess.py",
    needs_change=True,
    beside="a monitor per rank, and one of the wrapper's",
    cannot={"node_joins": "its policy `min-healthy` admits no node later (`fault_tolerance/launcher.py`, 0.4.1)"},
    settings="as above, but `last_call_timeout=15`; "
    " `--ft-restart-policy min-healthy`; intervals 0.1 s, `last_call_wait` 0.1 s, "
    "`soft_timeout` 3 s, `hard_timeout` 5 s, `heartbeat_timeout` 3 s",
    source="https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html",
)
