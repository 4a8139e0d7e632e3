"""Defaults from the environment variables of the platform that started this launcher: Open MPI, Volcengine or Slurm.
:func:`apply` sets them for flags that were not given.

A flag takes precedence over ``PET_*``, which takes precedence over the platform. Of several platforms, the innermost
counts: mpirun within a Slurm job counts processes as Open MPI does. At the start, one line lists the values in use, and
another the values that a flag overrides.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.launch.protocol.errors import LaunchError
from ddp_trainer.launch.protocol.hostlist import first_host

Environ = Mapping[str, str]

STEP: Final = "SLURM_STEP_ID"
"""Set by srun. Without it, this process is the batch script, which runs on the first node only."""

_FIRST_PORT: Final = 20_000
_PORTS: Final = 10_000
"""Number of ports; they are below those that Linux assigns by itself."""


@dataclass(frozen=True, slots=True)
class Default:
    """Variables that set the default of one flag; the first one that is set counts."""

    flag: str
    variables: tuple[str, ...]
    read: Callable[[str], str | int]
    """Function from the variable's text to the flag's value. Raises ValueError."""
    holds: Callable[[Environ], bool] = lambda _: True
    """Return whether the variables apply to this flag in this environment."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Platform with its marks and its defaults."""

    name: str
    title: str
    marks: tuple[str, ...]
    """Variables that identify the platform: at least one is set in processes that it started. The first always is."""
    defaults: tuple[Default, ...]
    device: str = ""
    """Variable with the local index of this process, on platforms that may start one launcher per worker."""


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError("is no number")
    return int(text)


def _positive(text: str) -> int:
    if not (value := _number(text)):
        raise ValueError("is no number from 1")
    return value


def _workers(text: str) -> str:
    return str(_positive(text))


def _nodes(text: str) -> str:
    return str(_positive(text))


def _port(text: str) -> int:
    if not 1 <= (value := _number(text)) < 1 << 16:
        raise ValueError("is no port from 1 to 65535")
    return value


def _port_of_job(text: str) -> int:
    """Return a port that is equal on all nodes of a job and differs for the next job."""
    return _FIRST_PORT + _number(text) % _PORTS


def _one(_text: str) -> str:
    return "1"


def _in_step(environ: Environ) -> bool:
    return STEP in environ


def _per_process(environ: Environ) -> bool:
    """Return whether each worker has its own launcher: the platform started several on this machine."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "") or environ.get("SLURM_NTASKS", "")
    nodes = environ.get("SLURM_STEP_NUM_NODES", "") or environ.get("SLURM_NNODES", "")
    several = tasks.isdecimal() and nodes.isdecimal() and int(tasks) > int(nodes)
    return (_in_step(environ) and several) or environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1") not in {"", "1"}


def _per_node(environ: Environ) -> bool:
    return _in_step(environ) and not _per_process(environ)


def _per_task(environ: Environ) -> bool:
    return _in_step(environ) and _per_process(environ)


def _not_per_process(environ: Environ) -> bool:
    return not _per_process(environ)


PLATFORMS: Final = (
    Platform(
        "openmpi",
        "Open MPI",
        ("OMPI_COMM_WORLD_SIZE",),
        (
            Default("nnodes", ("OMPI_COMM_WORLD_SIZE",), _nodes),
            Default("node_rank", ("OMPI_COMM_WORLD_RANK",), _number),
            Default("nproc_per_node", ("OMPI_COMM_WORLD_LOCAL_SIZE",), _one, _per_process),
            Default("master_addr", ("MASTER_ADDR",), str),
            Default("master_port", ("MASTER_PORT",), _port),
        ),
        device="OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Platform(
        "volcengine",
        "Volcengine",
        ("MLP_WORKER_NUM", "MLP_WORKER_GPU", "MLP_ROLE_INDEX", "MLP_WORKER_0_HOST", "MLP_WORKER_0_PORT"),
        (
            Default("nnodes", ("MLP_WORKER_NUM",), _nodes),
            Default("node_rank", ("MLP_ROLE_INDEX",), _number),
            Default("nproc_per_node", ("MLP_WORKER_GPU",), _workers),
            Default("master_addr", ("MLP_WORKER_0_HOST",), str),
            Default("master_port", ("MLP_WORKER_0_PORT",), _port),
        ),
    ),
    Platform(
        "slurm",
        "Slurm",
        ("SLURM_JOB_ID",),
        (
            Default("nnodes", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), _nodes, _per_task),
            Default("nnodes", ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), _nodes, _per_node),
            Default("node_rank", ("SLURM_PROCID",), _number, _per_task),
            Default("node_rank", ("SLURM_NODEID",), _number, _per_node),
            Default("nproc_per_node", ("SLURM_NTASKS",), _one, _per_task),
            Default("nproc_per_node", ("SLURM_GPUS_ON_NODE",), _workers, _not_per_process),
            Default("master_addr", ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), first_host, _in_step),
            Default("master_port", ("SLURM_JOB_ID",), _port_of_job, _in_step),
            Default("rdzv_id", ("SLURM_JOB_ID",), str),
        ),
        device="SLURM_LOCALID",
    ),
)
"""All platforms, the innermost first."""

NAMES: Final = ("auto", "none", *(platform.name for platform in PLATFORMS))

_OF_SEVERAL_NODES: Final = {"node_rank", "master_addr", "master_port"}
"""Flags that a launch on one node does not use: its group forms, and re-forms, without an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Value of one flag, from a platform."""

    flag: str
    value: str | int
    source: str

    def __str__(self) -> str:
        """Return the flag with its value and its source."""
        return f"--{self.flag.replace('_', '-')} {self.value} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Values of the platform that started this launcher."""

    title: str
    values: tuple[Value, ...]
    device: int | None
    """Device index of this launcher's only worker; None if its workers may use all devices."""


def find(environ: Environ, which: str = "auto") -> Found | None:
    """Return the platform that started this launcher; None if there is none.

    Raises:
        LaunchError: A variable is invalid, or the requested platform did not start this launcher.
    """
    platform = next(
        (each for each in PLATFORMS if not environ.keys().isdisjoint(each.marks) and which in {"auto", each.name}),
        None,
    )
    if platform is None and which not in {"auto", "none"}:
        mark = next(each.marks[0] for each in PLATFORMS if each.name == which)
        raise LaunchError(f"--platform {which}: ${mark} is not set, so this is no process that it has started.")
    if platform is None:
        return None
    values = tuple(_values(platform, environ))
    local = environ.get(platform.device, "")
    device = int(local) if local.isdecimal() and _per_process(environ) else None
    return Found(title=platform.title, values=values, device=device)


def _values(platform: Platform, environ: Environ) -> Iterable[Value]:
    seen: set[str] = set()
    for default in platform.defaults:
        variable = next((name for name in default.variables if environ.get(name, "").strip()), None)
        if variable is None or default.flag in seen or not default.holds(environ):
            continue
        seen.add(default.flag)
        text = environ[variable].strip()
        try:
            yield Value(flag=default.flag, value=default.read(text), source=variable)
        except ValueError as error:
            raise LaunchError(
                f"{platform.title}'s {variable}={text!r} {error}; give --{default.flag.replace('_', '-')}, or "
                "--platform none to leave its variables alone."
            ) from None


def apply(arguments: argparse.Namespace, environ: Environ) -> list[str]:
    """Set the flags that were not given from the platform, and return the lines to print about it.

    Raises:
        LaunchError: A variable of the platform is invalid.
    """
    arguments.device = None
    found = find(environ, arguments.platform)
    if found is None or arguments.standalone:
        return []
    taken = [value for value in found.values if value.flag not in arguments.told]
    beaten = [value for value in found.values if value.flag in arguments.told and _differs(arguments, value)]
    for value in taken:
        if value.flag == "nnodes":
            arguments.nnodes = value.value
    if arguments.nnodes.strip() in {"1", "1:1"}:
        taken = [value for value in taken if value.flag not in _OF_SEVERAL_NODES]
    for value in taken:
        setattr(arguments, value.flag, value.value)
    _use_store(arguments, {value.flag for value in taken})
    arguments.told |= {value.flag for value in taken}
    arguments.device = found.device if arguments.nproc_per_node == "1" else None
    _check(arguments, found, environ)
    return [*_sentences(found, taken, beaten), *_alone(arguments, environ)]


def _differs(arguments: argparse.Namespace, value: Value) -> bool:
    return str(getattr(arguments, value.flag)) != str(value.value)


def _use_store(arguments: argparse.Namespace, taken: Collection[str]) -> None:
    """Set the endpoint of an elastic rendezvous to the address of a static one."""
    if "master_addr" in taken and arguments.rdzv_backend != "static" and not arguments.rdzv_endpoint:
        port = "" if arguments.master_port is None else f":{arguments.master_port}"
        arguments.rdzv_endpoint = f"{arguments.master_addr}{port}"


def _sentences(found: Found, taken: Iterable[Value], beaten: Iterable[Value]) -> Iterable[str]:
    if used := ", ".join(map(str, taken)):
        yield f"From {found.title}: {used}."
    if unused := ", ".join(map(str, beaten)):
        yield f"{found.title} says {unused}; what was given counts instead."


def _alone(arguments: argparse.Namespace, environ: Environ) -> Iterable[str]:
    nodes = environ.get("SLURM_NNODES", "1")
    if "SLURM_JOB_ID" in environ and not _in_step(environ) and nodes != "1" and "nnodes" not in arguments.told:
        yield f"This Slurm job has {nodes} nodes and uses this one alone; srun --ntasks-per-node=1 starts it on all."


def _check(arguments: argparse.Namespace, found: Found, environ: Environ) -> None:
    rank, size = arguments.node_rank, arguments.nnodes.strip()
    highest = size.rpartition(":")[2]
    source = {value.flag: f"{value.source}={environ[value.source].strip()}" for value in found.values}
    if "node_rank" in source and highest.isdecimal() and rank >= int(highest) > 1:
        raise LaunchError(
            f"{source['node_rank']} makes this node {rank}, but {source.get('nnodes', '--nnodes')} has room for 0 to "
            f"{int(highest) - 1}; give --nnodes and --node-rank, or --platform none."
        )
    local = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    has_place = {"master_addr", "rdzv_endpoint"} & arguments.told
    if found.title == "Open MPI" and highest not in {"1", local} and not has_place:
        raise LaunchError(
            f"Open MPI started {highest} launchers on several machines and says nowhere which is the first; give "
            "--master-addr HOST, or mpirun -x MASTER_ADDR=HOST."
        )
