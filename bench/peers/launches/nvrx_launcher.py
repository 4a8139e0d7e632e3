"""``ft_launcher`` of nvidia-resiliency-ext with the plain script."""

from __future__ import annotations

from bench.peers.peer import Command, Job, Peer

SPARES = (
    "the size is `min_nodes`; more nodes are spares"
    " (https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/usage_guide.html)"
)


def node(job: Job, place: int, *timeouts: str) -> Command:
    """Return the agent; it starts a monitor for its rank. The plain script sends no heartbeats."""
    fast = ("--monitor-interval=0.1", "--workers-stop-timeout=1", "--ft-workload-check-interval=0.5", *timeouts)
    return Command(
        (
            *(job.python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"),
            *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=1000", "--ft-ignore-missing-cfg"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.ports[0]}", "--rdzv-id=bench"),
            *(f"--rdzv-conf=join_timeout=60,is_host={place == 0}", f"--local-addr=127.0.0.{place + 1}"),
            *(fast if job.fast else timeouts),
            job.loop,
        )
    )


PEER = Peer(
    title="ft_launcher",
    node=node,
    environment="nvrx",
    beside="monitors",
    cannot={"node_killed": SPARES, "node_joins": SPARES},
    settings="`--monitor-interval 0.1`, `--workers-stop-timeout 1`",
    source="https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/usage_guide.html",
)
