"""Environment variables that the launcher sets for a worker; :meth:`Environment.from_environ` reads them."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import CheckpointScope, Env, Moment
from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from ddp_trainer.process.gpu_devices import VISIBLE
from ddp_trainer.train.config.goodput_account import Moments
from ddp_trainer.train.utils.errors import BadConfig

_PROMISED: Final = "PET_NNODES"
DEFAULT_GRACE_SECONDS: Final = 30.0
"""Kubernetes' default time between SIGTERM and SIGKILL, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Place of this process in the worker group. The default is a group of one without a launcher."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0
    agent_hosts_store: bool = False
    """True if the launcher, not rank 0, listens on the master port (stock torchrun)."""
    generation: int = 0
    fence: int = 0
    """Number that grows with every worker group of the run, even if the generation restarts at 1."""
    run_id: str = ""
    most_ranks: int | None = None
    """Maximum number of ranks of the job, from the launcher or else the platform; None if neither sets it."""
    fewest_ranks: int | None = None
    """Minimum number of ranks to continue with, from the same source; None if not set."""
    promised_ranks: int | None = None
    """Maximum number of ranks that the platform allows (``PET_NNODES``); None if unset."""
    parallel: LayoutRange | None = None
    """Layouts in which the ranks share one model; None if the job does not set them."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of restarts of the run so far, by cause."""
    moments: Moments = field(default_factory=Moments)
    """Time stamps of the formation of this worker group."""
    run_dir: Path | None = None
    checkpoint_dir: Path | None = None
    checkpoint_scope: CheckpointScope = CheckpointScope.JOB
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    error_file: Path | None = None
    """File in which torch's launchers expect the error of a failed worker."""
    survives_on_nccl: bool = False
    """True if workers of the job keep running when an NCCL group ends."""
    threads_chosen: bool = False
    """True if ``OMP_NUM_THREADS`` is set, which already determines torch's thread count."""
    node: str = "this node"
    """Name of the Kubernetes node, or else the host name, for messages about its hardware."""
    visible_devices: Mapping[str, str] = field(default_factory=dict)
    """Variables that select GPUs, and ``PATH``, in which ``nvidia-smi`` is searched."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Environment:
        """Read the variables of torchrun and of ``ddp-launch``.

        Raises:
            BadConfig: A variable has an invalid value.
        """
        rank = _integer(environ, "RANK", 0)
        world = _integer(environ, "WORLD_SIZE", 1)
        if not 0 <= rank < world:
            raise BadConfig(f"RANK is {rank} and WORLD_SIZE is {world}.", hint="RANK must be below WORLD_SIZE.")
        local_world = _integer(environ, "LOCAL_WORLD_SIZE", 1)
        generation = _integer(environ, Env.GENERATION, _integer(environ, "TORCHELASTIC_RESTART_COUNT", 0))
        return cls(
            rank=rank,
            local_rank=_integer(environ, "LOCAL_RANK", 0),
            world_size=world,
            local_world_size=local_world,
            master_address=environ.get("MASTER_ADDR", "127.0.0.1"),
            master_port=_integer(environ, "MASTER_PORT", 0),
            agent_hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            generation=generation,
            fence=_integer(environ, Env.FENCE, generation),
            run_id=environ.get(Env.RUN_ID, ""),
            most_ranks=_ranks_of(_nodes(environ).rpartition(":")[2], environ, local_world),
            # A single number has no colon and gives None: it does not have to be the minimum.
            fewest_ranks=_ranks_of(_nodes(environ).rpartition(":")[0], environ, local_world),
            promised_ranks=_ranks_of(environ.get(_PROMISED, "").rpartition(":")[2], environ, local_world),
            parallel=_layouts(environ),
            restarts=_counts(environ),
            moments=_moments(environ),
            run_dir=_path(environ, Env.RUN_DIR),
            checkpoint_dir=_path(environ, Env.CHECKPOINT_DIR),
            checkpoint_scope=_scope(environ),
            grace_seconds=_number(environ, Env.GRACE_SECONDS, DEFAULT_GRACE_SECONDS),
            error_file=_path(environ, "TORCHELASTIC_ERROR_FILE"),
            survives_on_nccl=_is_on(environ, Env.SURVIVE_ON_NCCL),
            threads_chosen="OMP_NUM_THREADS" in environ,
            node=environ.get(Env.NODE_NAME) or socket.gethostname(),
            visible_devices={name: environ[name] for name in (VISIBLE, "PATH") if name in environ},
        )


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise BadConfig(f"{name} is {text!r}.", hint="Set it to a whole number.") from None


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise BadConfig(f"{name} is {text!r}.", hint="Set it to a number of seconds.") from None


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "")
    if text not in {"", "0", "1"}:
        raise BadConfig(f"{name} is {text!r}.", hint="Set it to 1 or 0.")
    return text == "1"


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name, "")
    return Path(text) if text else None


def _scope(environ: Mapping[str, str]) -> CheckpointScope:
    text = environ.get(Env.CHECKPOINT_SCOPE, "") or CheckpointScope.JOB.value
    try:
        return CheckpointScope(text)
    except ValueError:
        allowed = " or ".join(CheckpointScope)
        raise BadConfig(f"{Env.CHECKPOINT_SCOPE} is {text!r}.", hint=f"Set it to {allowed}.") from None


def _layouts(environ: Mapping[str, str]) -> LayoutRange | None:
    text = environ.get(Env.PARALLEL, "")
    try:
        return LayoutRange.parse(text) if text else None
    except LayoutError as err:
        raise BadConfig(f"{Env.PARALLEL} is {text!r}: {err}.") from None


def _nodes(environ: Mapping[str, str]) -> str:
    """Return the ``MIN:MAX`` nodes from ``ddp-launch``, or else from the platform (another launcher)."""
    return environ.get(Env.NODES) or environ.get(_PROMISED, "")


def _ranks_of(nodes: str, environ: Mapping[str, str], local_world: int) -> int | None:
    """Return the number of ranks on ``nodes`` nodes, one end of a range such as ``1:4``; None if it is not a number."""
    if not nodes.isdecimal():
        return None
    per_node = environ.get("PET_NPROC_PER_NODE", "")
    return int(nodes) * (int(per_node) if per_node.isdecimal() else local_world)


def _counts(environ: Mapping[str, str]) -> dict[str, int]:
    return {cause: int(count) for cause, count in _numbers(environ, Env.RESTARTS).items() if isinstance(count, int)}


def _moments(environ: Mapping[str, str]) -> Moments:
    times = _numbers(environ, Env.MOMENTS)
    return Moments(*(float(times.get(moment, 0.0)) for moment in Moment))


def _numbers(environ: Mapping[str, str], name: Env) -> dict[str, float]:
    """Read a JSON object of numbers. Invalid content reads as empty, because training can continue without it."""
    try:
        numbers = json.loads(environ.get(name, "") or "{}")
    except ValueError:
        return {}
    if not isinstance(numbers, dict):
        return {}
    return {str(key): number for key, number in numbers.items() if isinstance(number, int | float)}
