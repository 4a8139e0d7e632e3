"""Start and failure of a worker pod: the launcher's command line, and what a lost pod and a failed program mean.

The launcher is ``ddp-launch`` with the store of the job, or torchrun of the image. On every engine a lost pod is
replaced, and a failed program fails the job.
"""

from __future__ import annotations

import zlib
from pathlib import PurePosixPath
from typing import Any, Final

from ddp_trainer.common.constants import LOG_PREFIX, Env, Exit, Path, Port
from kubectl_ddp.engines import EngineKind
from kubectl_ddp.render.pod import literal
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.program import Command, Module, Script

LARGEST_LIMIT: Final = 2**31 - 1


def failures_view(spec: JobSpec, container: str) -> dict[str, Any]:
    """Return the failure settings for the templates."""
    return {"backoff_limit": backoff_limit(spec), "pod_failure_policy": pod_failure_policy(container)}


def backoff_limit(spec: JobSpec) -> int:
    """Return the number of lost pods that a job survives; an incident that affects every node counts once per node."""
    return min(LARGEST_LIMIT, spec.largest_pod_count * max(1, spec.max_restarts))


def pod_failure_policy(container: str) -> dict[str, Any]:
    """Return the exit code rules as a batch/v1 pod failure policy; the operator's ``ExitCode`` is equivalent.

    A pod that was evicted, preempted or removed from its node does not count, whatever its exit code. Codes from 128
    count, and the pod is replaced.
    """
    permanent = list(range(1, Exit.SIGNAL_BASE))
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": container, "operator": "In", "values": permanent},
            },
        ]
    }


START_SECONDS: Final = 600
"""Longest wait of torchrun's nodes for worker 0, as for the other nodes of the group. torch's default is 60."""
TORCHRUN_FLAGS: Final = (
    f"--rdzv-conf=read_timeout={START_SECONDS},join_timeout={START_SECONDS}",
    f"--local-addr=$({Env.POD_IP})",
)
"""Flags of torchrun alone. Peers reach a node by its address, since not every engine gives pods a name in DNS."""
_LOCAL_PORTS: Final = range(20000, 28000)
"""Ports of torchrun's store on this machine, where it listens at all addresses: every run has another one."""


def launch_view(spec: JobSpec, run_id: str, engine: EngineKind, *, is_local: bool) -> dict[str, Any]:
    """Return the arguments of launcher and store, and the place of the rendezvous, for the templates."""
    store = f"{spec.name}-store"
    store_port = Port.LOCAL_RENDEZVOUS if is_local else Port.RENDEZVOUS
    if spec.uses_torchrun:
        host, port = engine.first_host(spec.name), _local_port(run_id) if is_local else Port.RENDEZVOUS
        backend, flags = "c10d", [*TORCHRUN_FLAGS]
    else:
        host, port = store, store_port
        backend, flags = "ddp", [f"--log-line-prefix-template={LOG_PREFIX}"]
    arguments = [
        f"--nnodes={spec.nnodes.minimum}:{spec.nnodes.maximum}",
        f"--nproc-per-node={spec.nproc}",
        f"--rdzv-backend={backend}",
        f"--rdzv-endpoint={host}:{port:d}",
        f"--rdzv-id={run_id}",
        f"--max-restarts={spec.max_restarts}",
        "--tee=3",
        *flags,
    ]
    return {
        "launch_arguments": [*arguments, *map(literal, _program(spec, is_local=is_local))],
        "store_arguments": ["--port", f"{store_port:d}"],
        "names": {"store": store, "rendezvous": host},
    }


def _local_port(run_id: str) -> int:
    return _LOCAL_PORTS[zlib.crc32(run_id.encode()) % len(_LOCAL_PORTS)]


def _program(spec: JobSpec, *, is_local: bool) -> list[str]:
    match spec.program:
        case Script(path) if spec.code is not None or spec.code_claim is not None:
            start = [str(PurePosixPath(Path.CODE) / path)]
        case Script(path):
            start = [path if is_local else str(PurePosixPath(Path.CODE) / PurePosixPath(path).name)]
        case Module(name):
            start = ["-m", name]
        case Command(words):
            start = ["--no-python", *words]
    return [*start, *spec.args]
