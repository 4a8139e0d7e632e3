"""Stock torchrun: the launcher that comes with torch."""

from __future__ import annotations

from bench.peers.peer import Command, Job, Peer


def node(job: Job, place: int) -> Command:
    """Return the agent; the first one has the store."""
    fast = ("--monitor-interval=0.1", "--shutdown-timeout=1") if job.fast else ()
    conf = "join_timeout=60" + (",last_call_timeout=1,keep_alive_interval=1" if job.fast else "")
    return Command(
        (
            *(job.python, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1000"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.ports[0]}", "--rdzv-id=bench"),
            *(f"--rdzv-conf={conf}", f"--local-addr=127.0.0.{place + 1}", *fast, job.loop),
        ),
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if job.fast else {},
    )


PEER = Peer(
    title="torchrun",
    node=node,
    settings="`--monitor-interval 0.1`, `--shutdown-timeout 1`, `last_call_timeout=1`, "
    "`keep_alive_interval=1`, `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` (pytorch#135712)",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
)
