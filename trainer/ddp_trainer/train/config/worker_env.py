"""Environment variables that the launcher sets for a worker; :meth:`Environment.from_env` reads them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from ddp_trainer.common.constants import CheckpointScope, Env, LifecycleEvent
from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from ddp_trainer.process.gpu_devices import VISIBLE
from ddp_trainer.train.config.goodput_account import LauncherTimes
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.locations import StorageUrl, parse_location

_PROMISED: Final = "PET_NNODES"
DEFAULT_GRACE_SECONDS: Final = 30.0
"""Kubernetes' default time between SIGTERM and SIGKILL, in seconds."""


def _switch(text: str) -> bool:
    return {"0": False, "1": True}[text]


_EXPECTED: Final[Mapping[Callable[[str], Any], str]] = {
    int: "a whole number",
    float: "a number of seconds",
    CheckpointScope: " or ".join(CheckpointScope),
    _switch: "1 or 0",
}
"""Values that a parser accepts, for error messages."""

_T = TypeVar("_T")


def _variable(default: _T, parse: Callable[[str], Any], *variables: str) -> _T:
    """Declare a field that is read from the first of these variables that is set."""
    return field(default=default, metadata={"parse": parse, "variables": variables})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Place of this process in the worker group. The default is a group of one without a launcher."""

    rank: int = _variable(0, int, "RANK")
    local_rank: int = _variable(0, int, "LOCAL_RANK")
    world_size: int = _variable(1, int, "WORLD_SIZE")
    local_world_size: int = _variable(1, int, "LOCAL_WORLD_SIZE")
    master_address: str = _variable("127.0.0.1", str, "MASTER_ADDR")
    master_port: int = _variable(0, int, "MASTER_PORT")
    agent_hosts_store: bool = _variable(False, "True".__eq__, "TORCHELASTIC_USE_AGENT_STORE")
    """True if the launcher, not rank 0, listens on the master port (stock torchrun)."""
    generation: int = _variable(0, int, Env.GENERATION, "TORCHELASTIC_RESTART_COUNT")
    fence: int = _variable(0, int, Env.FENCE, Env.GENERATION, "TORCHELASTIC_RESTART_COUNT")
    """Number that grows with every worker group of the run, even if the generation restarts at 1."""
    run_id: str = _variable("", str, Env.RUN_ID)
    max_ranks: int | None = None
    """Maximum number of ranks of the job, from the launcher or else the platform; None if neither sets it."""
    min_ranks: int | None = None
    """Minimum number of ranks to continue with, from the same source; None if not set."""
    promised_ranks: int | None = None
    """Maximum number of ranks that the platform allows (``PET_NNODES``); None if unset."""
    parallel: LayoutRange | None = _variable(None, LayoutRange.parse, Env.PARALLEL)
    """Layouts in which the ranks share one model; None if the job does not set them."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of restarts of the run so far, by cause."""
    moments: LauncherTimes = field(default_factory=LauncherTimes)
    """Time stamps of the formation of this worker group."""
    run_dir: Path | None = _variable(None, Path, Env.RUN_DIR)
    checkpoint_dir: Path | StorageUrl | None = _variable(None, parse_location, Env.CHECKPOINT_DIR)
    checkpoint_scope: CheckpointScope = _variable(CheckpointScope.JOB, CheckpointScope, Env.CHECKPOINT_SCOPE)
    grace_seconds: float = _variable(DEFAULT_GRACE_SECONDS, float, Env.GRACE_SECONDS)
    error_file: Path | None = _variable(None, Path, "TORCHELASTIC_ERROR_FILE")
    """File in which torch's launchers expect the error of a failed worker."""
    survives_on_nccl: bool = _variable(False, _switch, Env.SURVIVE_ON_NCCL)
    """True if workers of the job keep running when an NCCL group ends."""
    threads_chosen: bool = False
    """True if ``OMP_NUM_THREADS`` is set, which already determines torch's thread count."""
    host: str = "this host"
    """Name of the Kubernetes node, or else the host name, for messages about its hardware."""
    visible_devices: Mapping[str, str] = field(default_factory=dict)
    """Variables that select GPUs, and ``PATH``, in which ``nvidia-smi`` is searched."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Environment:
        """Read the variables of torchrun and of ``ddp-launch``.

        Raises:
            BadConfig: A variable has an invalid value.
        """
        values = {member.name: _read(environ, member) for member in fields(cls) if member.metadata}
        rank, world, local_world = values["rank"], values["world_size"], values["local_world_size"]
        if not 0 <= rank < world:
            raise BadConfig(f"RANK is {rank} and WORLD_SIZE is {world}.", hint="RANK must be below WORLD_SIZE.")
        restarts, moments = _numbers(environ, Env.RESTARTS), _numbers(environ, Env.MOMENTS)
        events = (LifecycleEvent.LAUNCHED, LifecycleEvent.JOINED, LifecycleEvent.FORMED)
        return cls(
            **values,
            max_ranks=_ranks_of(_nodes(environ).rpartition(":")[2], environ, local_world),
            # A single number has no colon and gives None: it does not have to be the minimum.
            min_ranks=_ranks_of(_nodes(environ).rpartition(":")[0], environ, local_world),
            promised_ranks=_ranks_of(environ.get(_PROMISED, "").rpartition(":")[2], environ, local_world),
            restarts={cause: count for cause, count in restarts.items() if isinstance(count, int)},
            moments=LauncherTimes(*(float(moments.get(event, 0.0)) for event in events)),
            threads_chosen="OMP_NUM_THREADS" in environ,
            host=environ.get(Env.NODE_NAME) or socket.gethostname(),
            visible_devices={name: environ[name] for name in (VISIBLE, "PATH") if name in environ},
        )


def _read(environ: Mapping[str, str], member: Field[Any]) -> Any:
    """Return the value of the first variable of a field that is set and not empty, else the field's default."""
    parse = member.metadata["parse"]
    for name in member.metadata["variables"]:
        if text := environ.get(name, ""):
            try:
                return parse(text)
            except LayoutError as err:
                raise BadConfig(f"{name} is {text!r}: {err}.") from None
            except (KeyError, ValueError):
                raise BadConfig(f"{name} is {text!r}.", hint=f"Set it to {_EXPECTED[parse]}.") from None
    return member.default


def _nodes(environ: Mapping[str, str]) -> str:
    """Return the ``MIN:MAX`` nodes from ``ddp-launch``, or else from the platform (another launcher)."""
    return environ.get(Env.NODES) or environ.get(_PROMISED, "")


def _ranks_of(nodes: str, environ: Mapping[str, str], local_world: int) -> int | None:
    """Return the number of ranks on ``nodes`` nodes, one end of a range such as ``1:4``; None if it is not a number."""
    if not nodes.isdecimal():
        return None
    per_node = environ.get("PET_NPROC_PER_NODE", "")
    return int(nodes) * (int(per_node) if per_node.isdecimal() else local_world)


def _numbers(environ: Mapping[str, str], name: Env) -> dict[str, float]:
    """Read a JSON object of numbers. Invalid content reads as empty, because training can continue without it."""
    try:
        numbers = json.loads(environ.get(name, "") or "{}")
    except ValueError:
        return {}
    if not isinstance(numbers, dict):
        return {}
    return {str(key): number for key, number in numbers.items() if isinstance(number, int | float)}
