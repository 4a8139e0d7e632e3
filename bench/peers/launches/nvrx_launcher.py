"""``ft_launcher`` of nvidia-resiliency-ext with the plain script."""

from __future__ import annotations

from bench.peers.peer import Command, Job, Peer


def node(job: Job, place: int, policy: str = "any-failed", last_call: int = 1) -> Command:
    """Return the agent; it starts a monitor for its rank. The plain script sends no heartbeats."""
    fast = ("--monitor-interval=0.1", "--workers-stop-timeout=1", "--ft-workload-check-interval=1") if job.fast else ()
    conf = "join_timeout=60" + (f",last_call_timeout={last_call}" if job.fast else "")
    return Command(
        (
            *(job.python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"),
            *("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1000", "--ignore-missing-fault-tol-cfg"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.ports[0]}", "--rdzv-id=bench"),
            *(f"--rdzv-conf={conf}", f"--local-addr=127.0.0.{place + 1}", f"--ft-restart-policy={policy}", *fast),
            job.loop,
        )
    )


PEER = Peer(
    title="nvidia-resiliency-ext, ft_launcher",
    node=node,
    environment="nvrx",
    beside="a monitor per rank",
    settings="`--monitor-interval 0.1`, `--workers-stop-timeout 1`, `--ft-workload-check-interval 1`, "
    "`last_call_timeout=1`",
    source="https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/usage_guide.html",
)
