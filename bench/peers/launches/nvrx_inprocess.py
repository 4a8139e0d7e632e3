"""The in-process wrapper of nvidia-resiliency-ext: two processes per node, of which one is in reserve."""

from __future__ import annotations

from bench.peers.peer import Command, Job, Peer

GUIDE = "https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html"


def node(job: Job, place: int) -> Command:
    """Return a shell with both processes, as srun would start them: the wrapper does not work under torchrun."""
    start = f"RANK={place} {job.python} {job.loop} & RANK={place + 2} {job.python} {job.loop} & "
    return Command(
        ("sh", "-c", f"{start} wait"),
        {
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job.ports[0]),
            "BENCH_FAST": str(int(job.fast)),
            "TORCH_CPP_LOG_LEVEL": "error",
        },
    )


PEER = Peer(
    title="inprocess.Wrapper",
    node=node,
    loop="nvrx_inprocess.py",
    environment="nvrx",
    beside="monitors, reserves",
    needs_change=True,
    workers_left=2,  # the one of the other node, and its reserve
    restarts=False,
    cannot={"agent_killed": f"it has no agent ({GUIDE})", "node_joins": f"ended processes do not rejoin ({GUIDE})"},
    settings="intervals and `last_call_wait` 0.1 s, `soft_timeout` and `heartbeat_timeout` 3 s, `hard_timeout` 12 s",
    source=GUIDE,
)
