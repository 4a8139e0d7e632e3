"""torchft: a replica group of one worker on each node, each under stock torchrun, and a lighthouse."""

from __future__ import annotations

from bench.peers.peer import Command, Job, Peer


def services(job: Job) -> tuple[Command, ...]:
    """Return the lighthouse."""
    fast = ("--join_timeout_ms=1000", "--heartbeat_timeout_ms=1000") if job.fast else ("--join_timeout_ms=10000",)
    lighthouse = str(job.python).removesuffix("python") + "torchft_lighthouse"
    return (Command((lighthouse, "--min_replicas=1", f"--bind=[::]:{job.ports[0]}", "--quorum_tick_ms=100", *fast)),)


def node(job: Job, place: int) -> Command:
    """Return the agent of a replica group."""
    fast = ("--monitor-interval=0.1", "--shutdown-timeout=1") if job.fast else ()
    return Command(
        (
            *(job.python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1", "--max-restarts=1000"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.ports[1 + place]}", f"--rdzv-id=group-{place}"),
            *fast,
            job.loop,
        ),
        {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{job.ports[0]}", "REPLICA_GROUP_ID": str(place)},
    )


PEER = Peer(
    title="torchft",
    node=node,
    services=services,
    loop="torchft_loop.py",
    environment="torchft",
    beside="lighthouse, managers",
    needs_change=True,
    limits={
        "rank_hung": "a hung group sends heartbeats, and the lighthouse waits for it"
        " (https://github.com/meta-pytorch/torchft/blob/main/src/lighthouse.rs)",
        "rank_stopped": "torchrun restarts only what has exited"
        " (https://docs.pytorch.org/docs/stable/elastic/agent.html)",
    },
    settings="`--join_timeout_ms 1000`, `--heartbeat_timeout_ms 1000`; torchrun as above",
    source="https://docs.pytorch.org/torchft/",
)
