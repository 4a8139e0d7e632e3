"""Conversion of flags and environment to checked values: numbers of nodes and workers, time limits, the program, its
logs. Each function returns one value and raises LaunchError if the input is invalid. :mod:`ddp_trainer.launch.cli`
calls them.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.parallel_dims import LayoutError, parse_dim_sizes
from ddp_trainer.launch.agent.agent_state import Limits
from ddp_trainer.launch.agent.preflight_policy import PreflightPolicy
from ddp_trainer.launch.host import numa
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.launch.protocol.messages import Policy, ProgramIdentity
from ddp_trainer.launch.protocol.timeouts import HEARTBEAT, HeartbeatTimeouts
from ddp_trainer.launch.workers.logs import LogSpec, parse_std
from ddp_trainer.launch.workers.worker_group import TRAINER, Program
from ddp_trainer.net.arguments import node_range
from ddp_trainer.process.gpu_devices import visible_gpus

GRACE_MARGIN_SECONDS: Final = 5.0
"""Seconds of the pod's grace period that are reserved for the launcher's own report."""

FORK_SERVER_DELAY_SECONDS: Final = 5.0
"""Seconds from the start of workers to the fork server. By then workers have finished their imports and are not
slowed.
"""
_DEVICE_FILES: Final = {"xpu": "/dev/dri", "hpu": "/dev/accel"}
"""Kind of device → folder that its driver makes. A laptop's graphics have one too, so torch counts."""

_TRAINER_MODULES: Final = ("ddp_trainer.train.cli", "ddp_trainer.train.trainer")
"""Modules that the fork server imports for the reference trainer, so that a restart does not import them again."""
_LAYOUT_MODULES: Final = {
    "shard": ("torch.distributed.fsdp", "torch._dynamo"),
    "tp": ("torch.distributed.tensor.parallel", "torch._dynamo"),
    "pp": ("torch.distributed.pipelining",),
}
"""Dimension of a layout → modules that it needs. DTensors import torch's compiler in their first operation."""

BACKENDS: Final = ("static", "c10d", "ddp")

_STOCK_SHUTDOWN: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torchrun's variable for ``--shutdown-timeout``."""

_CONF_KEYS: Final = {
    "join_timeout": 600.0,
    "timeout": 600.0,
    "last_call_timeout": 30.0,
    "settle_timeout": 1.0,
    "heartbeat_timeout": HEARTBEAT.timeout,
    "keep_alive_interval": 1.0,
    "keep_alive_max_attempt": 5.0,
    "close_timeout": 30.0,
    "read_timeout": 60.0,
    "is_host": 0.0,
    "store_type": 0.0,
    "use_libuv": 0.0,
    "cas_backoff_max_seconds": 0.0,
}
"""torchrun's keys of ``--rdzv-conf``, and ``settle_timeout``, with defaults. Keys that have no effect are accepted."""

_SECRET_FILE: Final = "secret_file"  # noqa: S105 - the name of a key

_WORDS: Final = {"true": "1", "t": "1", "yes": "1", "y": "1", "false": "0", "f": "0", "no": "0", "n": "0", "tcp": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """Values of ``--rdzv-conf``; times are in seconds."""

    join: float
    last_call: float
    settle: float
    heartbeat: HeartbeatTimeouts
    is_host: bool | None
    """Whether this node hosts the store; None to decide by its address."""
    secret_file: str
    """File with the secret of the run; empty for that of the environment."""


def conf_of(text: str) -> Conf:
    """Return the values of ``--rdzv-conf``.

    Raises:
        LaunchError: For an unknown key or an invalid value.
    """
    given: dict[str, float] = {}
    secret_file = ""
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key == _SECRET_FILE and value:
            secret_file = value
            continue
        if not equals or key not in _CONF_KEYS:
            raise LaunchError(
                f"--rdzv-conf {pair!r} is not KEY=VALUE with one of the keys {', '.join((_SECRET_FILE, *_CONF_KEYS))}."
            )
        given[key] = _seconds(f"--rdzv-conf {key}={value}", _WORDS.get(value.lower(), value))
    values = _CONF_KEYS | given
    interval = values["keep_alive_interval"]
    silence = given.get("heartbeat_timeout", max(values["heartbeat_timeout"], 3 * interval))
    return Conf(
        join=values["join_timeout"],
        last_call=values["last_call_timeout"],
        settle=values["settle_timeout"],
        heartbeat=HeartbeatTimeouts(interval=min(interval, silence / 3), timeout=silence),
        is_host=bool(given["is_host"]) if "is_host" in given else None,
        secret_file=secret_file,
    )


def _seconds(setting: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise LaunchError(f"{setting} is not a number of seconds.")
    return value


def policy_of(arguments: argparse.Namespace, conf: Conf) -> Policy:
    """Return the numbers of nodes and restarts, and the times of the rendezvous.

    Raises:
        LaunchError: For an invalid range of nodes or a negative number of restarts.
    """
    low, high = node_range(arguments.nnodes, LaunchError)
    if arguments.max_restarts < 0:
        raise LaunchError(f"--max-restarts {arguments.max_restarts} is less than 0.")
    return Policy(
        min_nodes=low,
        max_nodes=high,
        max_restarts=arguments.max_restarts,
        settle_seconds=conf.settle,
        last_call_seconds=conf.last_call,
    )


def check_backend(name: str) -> None:
    """Check that the rendezvous backend is supported.

    Raises:
        LaunchError: It is not. The message for etcd names the backend to use.
    """
    if name.startswith("etcd"):
        raise LaunchError(
            f"--rdzv-backend {name} speaks etcd's v2 API, which etcd 3.6 removed; use --rdzv-backend c10d with "
            "--rdzv-endpoint HOST:29400, where `python -m ddp_trainer store` runs."
        )
    if name not in BACKENDS:
        raise LaunchError(f"--rdzv-backend {name!r} is none of {', '.join(BACKENDS)}.")


def limits_of(arguments: argparse.Namespace, conf: Conf, environ: Mapping[str, str]) -> Limits:
    """Return the time limits of the agent.

    Raises:
        LaunchError: For an invalid or negative ``--shutdown-timeout`` or variable.
    """
    seconds = arguments.shutdown_timeout
    grace, stock = environ.get(Env.GRACE_SECONDS, ""), environ.get(_STOCK_SHUTDOWN, "")
    if seconds is None and grace:
        seconds = max(1.0, _seconds(f"{Env.GRACE_SECONDS}={grace!r}", grace) - GRACE_MARGIN_SECONDS)
    elif seconds is None:
        seconds = _seconds(f"{_STOCK_SHUTDOWN}={stock!r}", stock) if stock else Limits().shutdown
    if seconds < 0:
        raise LaunchError(f"--shutdown-timeout {seconds:g} is less than 0.")
    return Limits(join=conf.join, shutdown=float(seconds), failure=min(Limits().failure, float(seconds)))


def parse_signals(text: str) -> list[signal.Signals]:
    """Return the signals of ``--signals-to-handle``.

    Raises:
        LaunchError: For an unknown signal, or one that cannot be handled.
    """
    signals: list[signal.Signals] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        try:
            which = signal.Signals[name.upper()]
        except KeyError:
            raise LaunchError(f"--signals-to-handle {name!r} is not a signal; for example SIGTERM,SIGINT.") from None
        if which in {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            raise LaunchError(f"--signals-to-handle {name}: this signal cannot be handled.")
        signals.append(which)
    return signals


def program_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Program:
    """Return the program that the workers run.

    Raises:
        LaunchError: The program does not exist, or the flags contradict each other.
    """
    target: str = arguments.training_script
    rest = (*_local_rank_argument(arguments.pass_local_rank), *arguments.training_script_args)
    python = environ.get("PYTHON_EXEC") or sys.executable
    if arguments.no_python and not arguments.run_path:
        if arguments.module:
            raise LaunchError("--no-python and --module exclude each other; remove one.")
        if not shutil.which(target, path=environ.get("PATH")):
            raise LaunchError(f"There is no program {target!r} in $PATH, or it is not executable.")
        return Program(kind="command", target=target, arguments=rest, python=sys.executable)
    if arguments.module and not arguments.run_path:
        if python == sys.executable and not _has_module(target):
            raise LaunchError(f"There is no module {target!r} in {Path.cwd()} or in this Python; is it installed?")
        files = _module_files(target) if python == sys.executable else ()
        return Program(kind="module", target=target, arguments=rest, python=python, files=files)
    if not Path(target).exists():
        raise LaunchError(f"There is no script {target!r} in {Path.cwd()}.")
    if Path(target).is_dir() and not Path(target, "__main__.py").exists():
        raise LaunchError(f"{target!r} is a directory without __main__.py; name the script in it.")
    return Program(kind="script", target=target, arguments=rest, python=python, files=(Path(target),))


def identity_of(program: Program, environ: Mapping[str, str]) -> ProgramIdentity:
    """Return what identifies the job to other nodes. A module is not looked up: its name alone identifies it."""
    if program.kind == "module":
        return ProgramIdentity(program=program.target)
    found = shutil.which(program.target, path=environ.get("PATH")) if program.kind == "command" else program.target
    path = Path(found or program.target).absolute()
    return ProgramIdentity(program=path.name, path=str(path), digest=_digest(path))


def _digest(path: Path) -> str:
    """Return size and CRC-32 of a file, or of a folder's ``__main__.py``. It detects accidents, not forgeries."""
    size, check = 0, 0
    try:
        with (path / "__main__.py" if path.is_dir() else path).open("rb") as file:
            while piece := file.read(1 << 20):
                size, check = size + len(piece), zlib.crc32(piece, check)
    except OSError:
        return ""
    return f"{size}-{check:08x}"


def _local_rank_argument(spelling: str) -> tuple[str, ...]:
    """Return the local rank argument, in front of all others as in torch.distributed.launch. torch 1 used an
    underscore.
    """
    if not spelling:
        return ()
    if spelling.lstrip("-") not in {"local-rank", "local_rank"}:
        raise LaunchError(f"--pass-local-rank {spelling!r} is neither local-rank nor local_rank.")
    return (f"--{spelling.lstrip('-')}=${{local_rank}}",)


def _has_module(name: str) -> bool:
    """Return whether the top-level package exists. To find a submodule, Python would have to import the package."""
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    return importlib.machinery.PathFinder.find_spec(top, _search_path()) is not None


def _search_path() -> list[str]:
    return [str(Path.cwd()), *sys.path]


def _module_files(name: str) -> tuple[Path, ...]:
    """Return the files that ``python -m name`` runs: those of its packages, then its own. Empty if one is not found.
    Nothing is imported.
    """
    files: list[Path] = []
    locations: list[str] | None = _search_path()
    for part in (*name.split("."), "__main__"):
        if locations is None:  # the last file is no package
            return tuple(files) if part == "__main__" else ()
        spec = importlib.machinery.PathFinder.find_spec(part, locations)
        if spec is None:
            return ()
        files += [Path(spec.origin)] if spec.origin else []
        locations = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return tuple(files)


def logs_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> LogSpec:
    """Return the routes of the workers' output.

    Raises:
        LaunchError: A flag for logs is invalid.
    """
    shown: frozenset[int] | None = None
    if arguments.local_ranks_filter:
        if not re.fullmatch(r"\d+(,\d+)*", arguments.local_ranks_filter.replace(" ", "")):
            raise LaunchError(
                f"--local-ranks-filter {arguments.local_ranks_filter!r} is not a list of ranks such as 0,1."
            )
        shown = frozenset(int(rank) for rank in arguments.local_ranks_filter.split(","))
    named = environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", LogSpec().prefix)
    template = arguments.log_line_prefix_template if "log_line_prefix_template" in arguments.given else named
    return LogSpec(
        redirects=parse_std(arguments.redirects, "--redirects"),
        tee=parse_std(arguments.tee, "--tee"),
        shown=shown,
        prefix=template,
        stdout_filters=_split_list(arguments.duplicate_stdout_filters),
        stderr_filters=_split_list(arguments.duplicate_stderr_filters),
    )


def preload_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[str] | None:
    """Return the modules that the fork server imports besides torch; None for no fork server.

    Raises:
        LaunchError: The variable for the fork server's delay is invalid.
    """
    if arguments.no_fork_server or not fork_server_delay_of(environ):
        return None
    names = [name.strip() for name in arguments.preload.split(",") if name.strip()]
    of_trainer = _TRAINER_MODULES if arguments.training_script == TRAINER else ()
    return [*names, *of_trainer, *_layout_modules(arguments.training_script_args, environ)]


def _layout_modules(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the modules of torch that the layout of the program's ``--parallel``, or of the job, needs."""
    given = [value for flag, value in pairwise(words) if flag == "--parallel"]
    given += [word.partition("=")[2] for word in words if word.startswith("--parallel=")]
    try:
        sizes = parse_dim_sizes(given[-1] if given else environ.get(Env.PARALLEL, ""))
    except LayoutError:  # a program may mean something else by this flag
        return []
    needed = [modules for name, modules in _LAYOUT_MODULES.items() if name in sizes and sizes[name][1] > 1]
    return list(chain.from_iterable(needed))


def parse_preflight_policy(arguments: argparse.Namespace, environ: Mapping[str, str]) -> PreflightPolicy:
    """Return the policy of ``--preflight``, else that of the environment.

    Raises:
        LaunchError: The environment's value is invalid.
    """
    text = arguments.preflight or environ.get(Env.PREFLIGHT, "").strip() or PreflightPolicy.OFF
    if text not in list(PreflightPolicy):
        raise LaunchError(f"{Env.PREFLIGHT}={text!r} is none of {', '.join(PreflightPolicy)}.")
    return PreflightPolicy(text)


def fork_server_delay_of(environ: Mapping[str, str]) -> float:
    """Return the seconds from the start of workers to the fork server; 0 for no fork server.

    Raises:
        LaunchError: The variable is neither 0 nor a number of seconds.
    """
    text = environ.get(Env.FORK_SERVER, "") or str(FORK_SERVER_DELAY_SECONDS)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise LaunchError(f"{Env.FORK_SERVER}={text!r} is neither 0, for no fork server, nor a number of seconds.")
    return float(text)


def _split_list(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list. Two commas stand for a comma in a word."""
    return tuple(word.replace("\0", ",") for word in text.replace(",,", "\0").split(",") if word)


def local_world_size_of(text: str, environ: Mapping[str, str]) -> int:
    """Return the number of workers on this node.

    Raises:
        LaunchError: For an invalid value, or ``gpu`` on a node without GPUs.
    """
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    if text not in {"auto", "cpu", "gpu"}:
        return device_count(text, environ)
    found = len(visible_gpus(environ))
    if text == "gpu":
        if not found:
            raise LaunchError(
                "--nproc-per-node gpu: this node has no NVIDIA GPU that we may use; use cpu, or a number."
            )
        return found
    if text == "auto":
        others = (_count_by_torch(kind, environ) for kind, files in _DEVICE_FILES.items() if Path(files).exists())
        return found or next(filter(None, others), 0) or _cpus()
    return _cpus()


def device_count(kind: str, environ: Mapping[str, str]) -> int:
    """Return the number of devices of a kind that only torch knows: ``xpu``, ``hpu``, or a private backend.

    Raises:
        LaunchError: torch knows no such device, or this node has none.
    """
    count = _count_by_torch(kind, environ) if kind.isidentifier() else None
    if count is None:
        raise LaunchError(
            f"--nproc-per-node {kind!r} is neither a number from 1 nor auto, cpu, gpu or a device of this torch."
        )
    if not count:
        raise LaunchError(f"--nproc-per-node {kind}: torch finds no device of this kind; use cpu, or a number.")
    return count


def _count_by_torch(kind: str, environ: Mapping[str, str]) -> int | None:
    """Ask torch in another process, as the launcher does not import it; None if torch has no module of this name."""
    program = f"import torch; print(torch.{kind}.device_count())"
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    *_, last = done.stdout.split() or [""]
    return int(last) if done.returncode == 0 and last.isdecimal() else None


def cpus_of(mode: str | None, workers: int, environ: Mapping[str, str]) -> tuple[frozenset[int], ...]:
    """Return the processors that each worker is bound to; empty without ``--numa-binding`` or its variable.

    Raises:
        LaunchError: The binding is not possible on this node, or there is none of this name.
    """
    mode = mode or environ.get(Env.NUMA_BINDING)
    if mode and mode not in numa.NAMES:
        raise LaunchError(f"{Env.NUMA_BINDING}={mode!r} is none of {', '.join(numa.NAMES)}.")
    return numa.bindings(mode, workers, numa.this_machine(environ)) if mode else ()


def check_gpu_count(local_world_size: int, environ: Mapping[str, str], *, one_each: bool) -> str:
    """Return a warning if workers outnumber the GPUs, else an empty string. A script without GPUs may intend this.

    Raises:
        LaunchError: If each worker must have one.
    """
    found = len(visible_gpus(environ))
    if not 0 < found < local_world_size:
        return ""
    there = "1 GPU" if found == 1 else f"{found} GPUs"
    if one_each:
        raise LaunchError(
            f"--virtual-local-rank gives each of {local_world_size} workers a separate GPU, and this node has "
            f"{there}; start fewer workers, or leave the flag out."
        )
    return (
        f"{local_world_size} workers share {there}: those that choose theirs by "
        f"LOCAL_RANK will fail from rank {found} on, and NCCL before 2.30 takes no GPU twice; --nproc-per-node gpu "
        "starts one each."
    )


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
