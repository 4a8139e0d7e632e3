"""What the launcher told this process: the room's only reader of environment variables."""

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
"""Kubernetes' own default between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """This process's place in the worker group; by default a group of one, started by hand."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0
    agent_hosts_store: bool = False
    """The launcher, and not rank 0, listens on the master port (stock torchrun)."""
    generation: int = 0
    fence: int = 0
    """Grows from one worker group of the run to the next, also where the generation begins at 1 again."""
    run_id: str = ""
    most_ranks: int | None = None
    """The most ranks that the job can ever have, where the launcher says so."""
    fewest_ranks: int | None = None
    """The fewest that it goes on with, where the launcher says so."""
    promised_ranks: int | None = None
    """The most that the platform makes room for, where that says so."""
    parallel: LayoutRange | None = None
    """How the ranks share one model, where the job says so."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts of the run so far, by cause."""
    moments: Moments = field(default_factory=Moments)
    """How this worker group came about."""
    run_dir: Path | None = None
    checkpoint_dir: Path | None = None
    checkpoint_scope: CheckpointScope = CheckpointScope.JOB
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    error_file: Path | None = None
    """Where torch's launchers look for the reason of a failure."""
    survives_on_nccl: bool = False
    """The job asks workers to outlive an NCCL group."""
    threads_chosen: bool = False
    """OMP_NUM_THREADS was set, so torch has its thread count already."""
    node: str = "this node"
    """Name of the Kubernetes node, else of the machine, for sentences about its hardware."""
    visible_devices: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose GPUs, and the search path of ``nvidia-smi``."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Environment:
        """Read torchrun's and our own variables.

        Raises:
            BadConfig: a variable does not hold what it must.
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
            # Of one number alone nobody knows whether it is the fewest.
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
    """As the launcher was told last; of a launcher that is not ours, as the platform says."""
    return environ.get(Env.NODES) or environ.get(_PROMISED, "")


def _ranks_of(nodes: str, environ: Mapping[str, str], local_world: int) -> int | None:
    """Those of so many nodes, an end of a range (``2`` or ``1:4``), by the processes per node."""
    if not nodes.isdecimal():
        return None
    per_node = environ.get("PET_NPROC_PER_NODE", "")
    return int(nodes) * (int(per_node) if per_node.isdecimal() else local_world)


def _counts(environ: Mapping[str, str]) -> dict[str, int]:
    """Restarts by cause."""
    return {cause: int(count) for cause, count in _numbers(environ, Env.RESTARTS).items() if isinstance(count, int)}


def _moments(environ: Mapping[str, str]) -> Moments:
    times = _numbers(environ, Env.MOMENTS)
    return Moments(*(float(times.get(moment, 0.0)) for moment in Moment))


def _numbers(environ: Mapping[str, str], name: Env) -> dict[str, float]:
    """A JSON object of numbers; what cannot be read is no reason to stop training, so it reads as none."""
    try:
        numbers = json.loads(environ.get(name, "") or "{}")
    except ValueError:
        return {}
    if not isinstance(numbers, dict):
        return {}
    return {str(key): number for key, number in numbers.items() if isinstance(number, int | float)}
