"""This project's launcher with the plain script."""

from __future__ import annotations

import secrets
import sys

from bench.peers.peer import Command, Job, Peer
from ddp_trainer.common.constants import Env


def services(job: Job) -> tuple[Command, ...]:
    """Return the store, and write the secret of the run."""
    secret = job.folder / "run-secret"
    if not secret.exists():
        secret.touch(0o600)
        secret.write_text(f"{secrets.token_hex(32)}\n")
    command = (sys.executable, "-m", "ddp_trainer", "store", "--port", str(job.ports[0]))
    return (Command(command, {Env.SECRET_FILE: str(secret)}),)


def node(job: Job, place: int) -> Command:
    """Return the agent."""
    folder = job.folder / f"run-{place}"
    folder.mkdir(exist_ok=True)
    fast: dict[str, str] = {Env.HANG_FLOOR: "2", Env.FORK_SERVER: "2"} if job.fast else {}
    return Command(
        (
            *(sys.executable, "-m", "ddp_trainer", "launch", "--nnodes=1:2", "--nproc-per-node=1"),
            *("--max-restarts=1000", "--rdzv-backend=ddp", f"--rdzv-endpoint=127.0.0.1:{job.ports[0]}"),
            *("--rdzv-id=bench", job.loop),
        ),
        {
            Env.POD_NAME: f"worker-{place}",
            Env.RUN_DIR: str(folder),
            Env.SECRET_FILE: str(job.folder / "run-secret"),
            Env.ON_HANG: "act",
            **fast,
        },
    )


PEER = Peer(
    title="ddp-launch",
    node=node,
    services=services,
    beside="store",
    settings="`DDP_ON_HANG=act`, `DDP_HANG_FLOOR=2`, `DDP_FORK_SERVER=2`",
    source="launcher.md",
)
