"""Commands that start a launcher: torchrun, accelerate launch and deepspeed become keys of the job.

:func:`take_over` is the entry point; :mod:`kubectl_ddp.spec.resolve` calls it with the values that the user gave. Flags
that no key of a job corresponds to are refused by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from ddp_trainer.common.constants import Env
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.job_key import Given, Origin, OriginKind
from kubectl_ddp.values.parsers import Raw, parse_command
from kubectl_ddp.values.quantity import BadValue

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_OWN: Final = ""
"""Meaning of a flag that every job has a value of its own for, such as the place of the rendezvous."""
_PROGRAM_FLAGS: Final[Mapping[str, str | None]] = {"module": None, "no-python": None}

_TORCHRUN: Final[Mapping[str, str | None]] = {
    **_PROGRAM_FLAGS,
    "nnodes": "nnodes",
    "nproc-per-node": "nproc",
    "max-restarts": "maxRestarts",
    "log-dir": "env.PET_LOG_DIR",
    "redirects": "env.PET_REDIRECTS",
    "local-ranks-filter": "env.PET_LOCAL_RANKS_FILTER",
    "signals-to-handle": "env.PET_SIGNALS_TO_HANDLE",
    "shutdown-timeout": "env.PET_SHUTDOWN_TIMEOUT",
    "numa-binding": f"env.{Env.NUMA_BINDING}",
    "virtual-local-rank": None,
    "standalone": None,
    "use-env": None,
    "run-path": None,
    **dict.fromkeys(("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr"), _OWN),
    **dict.fromkeys(("master-port", "local-addr", "role", "monitor-interval", "start-method", "tee"), _OWN),
    **dict.fromkeys(("event-log-handler", "log-line-prefix-template"), _OWN),
}
_ACCELERATE: Final[Mapping[str, str | None]] = {
    **_PROGRAM_FLAGS,
    "num-machines": "nnodes",
    "num-processes": "nproc",
    "max-restarts": "maxRestarts",
    "mixed-precision": "env.ACCELERATE_MIXED_PRECISION",
    "dynamo-backend": "env.ACCELERATE_DYNAMO_BACKEND",
    "gradient-accumulation-steps": "env.ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "num-cpu-threads-per-process": "env.OMP_NUM_THREADS",
    "log-dir": "env.PET_LOG_DIR",
    "cpu": None,
    "multi-gpu": None,
    "same-network": None,
    "quiet": None,
    **dict.fromkeys(("machine-rank", "main-process-ip", "main-process-port", "rdzv-backend", "rdzv-conf"), _OWN),
    **dict.fromkeys(("monitor-interval", "role", "tee"), _OWN),
}
_DEEPSPEED: Final[Mapping[str, str | None]] = {
    **_PROGRAM_FLAGS,
    "num-nodes": "nnodes",
    "num-gpus": "gpus",
    "no-local-rank": None,
    "no-ssh": None,
    "force-multi": None,
    **dict.fromkeys(("master-addr", "master-port", "node-rank", "launcher", "launcher-args"), _OWN),
}
_FLAGS: Final = {
    "torchrun": _TORCHRUN,
    "ddp-launch": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate launch": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
}
"""Launcher → its flags, each with the key that takes its value, or None for a switch."""
LAUNCHERS: Final = frozenset(_FLAGS)
"""Programs and modules that start ranks."""
_SHORT: Final = {"-m": "module", "-r": "redirects", "-t": "tee"}
_IN_GPU_COUNT: Final = frozenset({"auto", "gpu"})
"""Values of ``--nproc-per-node`` that mean one process per GPU, the default of a job with GPUs."""


@dataclass(slots=True)
class _Launch:
    """Command line of a launcher, taken apart."""

    launcher: str
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Key of the job → its value, and the flag that gives it."""
    switches: set[str] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)
    """Flags for which a job has values of its own, as they are written."""
    program: list[str] = field(default_factory=list)
    """Program and its arguments."""


def take_over(values: Mapping[str, Given]) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Return the values of a job with those of the launcher in its command, and notes about them.

    A key that is given as strongly as the command wins over the launcher's flag.

    Raises:
        UsageError: If the launcher starts nothing, or one of its flags has no counterpart in a job.
    """
    given = values.get("command")
    launch = _parse_launch(given.raw) if given is not None else None
    if given is None or launch is None:
        return dict(values), ()
    rest = {key: entry for key, entry in values.items() if key != "command"}
    origin = Origin(given.origin.kind, given.origin.place, f"the command of {launch.launcher}")
    program, arguments = _program(launch, rest)
    taken, notes = dict(rest), []
    for key, (value, written) in _launch_values(launch, rest).items():
        known = rest.get(key)
        if known is None or not _has_precedence(known.origin.kind, origin.kind):
            taken[key] = Given(value, Origin(origin.kind, origin.place, f"{written} of {launch.launcher}"))
        elif str(known.raw) != value:
            notes.append(f"{known.origin.place} ({known.raw}) wins over {written} of {launch.launcher}.")
    taken |= {key: Given(raw, origin) for key, raw in program.items()}
    if "args" not in rest or isinstance(rest["args"].raw, list):
        taken["args"] = Given([*arguments, *_list_value(rest.get("args"))], origin)
    return taken, (_summary(launch, taken, program), *notes)


def _parse_launch(raw: Raw) -> _Launch | None:
    """Return the launcher of a command; None for another program, or for a command that the job's rules refuse."""
    try:
        words = list(parse_command(raw))
    except BadValue:
        return None
    assigned: dict[str, tuple[str, str]] = {}
    if words[0] == "env":
        del words[0]
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        assigned[f"env.{match[1]}"] = match[2], match[0]
        del words[0]
    launcher, rest = _launcher(words)
    if launcher is None:
        return None
    launch = _Launch(launcher, keys=assigned)
    _read_flags(launch, rest)
    if not launch.program:
        raise UsageError(f"'{' '.join(words)}' starts no program.", hint="Name the script behind the flags.")
    return launch


def _launcher(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the launcher that a command starts with, and the words after it."""
    name = PurePath(words[0]).name if words else ""
    if re.fullmatch(r"python[\d.]*", name):
        flags = next((place for place, word in enumerate(words[1:], 1) if not word.startswith("-") or word == "-m"), 0)
        if flags and words[flags] == "-m" and words[flags + 1 : flags + 2]:
            return (words[flags + 1] if words[flags + 1] in _FLAGS else None), words[flags + 2 :]
        return None, []
    pair = " ".join([name, *words[1:2]])
    return (pair, words[2:]) if pair in _FLAGS else (name, words[1:]) if name in _FLAGS else (None, [])


def _read_flags(launch: _Launch, words: list[str]) -> None:
    """Take the launcher's flags, up to the program, from its words."""
    flags, rest = _FLAGS[launch.launcher], list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        written, equals, value = word.partition("=")
        name = _full_name(launch.launcher, written, flags)
        key = flags[name]
        if key is None:
            launch.switches.add(name)
            continue
        if not equals:
            if not rest:
                raise UsageError(f"{launch.launcher} {written} has no value.", hint="Give it one.")
            value = rest.pop(0)
        if key == _OWN:
            launch.dropped.append(written)
        else:
            launch.keys[key] = value, f"{written} {value}"
    launch.program = rest[:1] + (rest[2:] if rest[1:2] == ["--"] else rest[1:])


def _full_name(launcher: str, written: str, flags: Mapping[str, str | None]) -> str:
    """Return the name of a flag, which may be a prefix that is unique. Raises UsageError for one without a key."""
    name = _SHORT.get(written) or written.removeprefix("--").replace("_", "-")
    if name in flags:
        return name
    begun = [flag for flag in flags if written.startswith("--") and flag.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    raise UsageError(
        f"The flag {written} of {launcher} has no counterpart in a job.",
        hint="Leave it out, or submit the program behind the launcher, with --nnodes and --nproc.",
    )


def _launch_values(launch: _Launch, rest: Mapping[str, Given]) -> dict[str, tuple[str, str]]:
    """Return the values of the launcher's flags as values of keys. Raises UsageError."""
    keys = dict(launch.keys)
    if "standalone" in launch.switches:
        keys.setdefault("nnodes", ("1", "--standalone"))
    if "virtual-local-rank" in launch.switches:
        keys["env.PET_VIRTUAL_LOCAL_RANK"] = "1", "--virtual-local-rank"
    if "cpu" in launch.switches:
        keys["env.ACCELERATE_USE_CPU"] = "true", "--cpu"
    if "nproc" in keys and keys["nproc"][0] in _IN_GPU_COUNT and ("gpus" in rest or "nproc" in rest):
        del keys["nproc"]
    if launch.launcher == "accelerate launch" and "nproc" in keys:
        keys["nproc"] = _per_node(keys["nproc"], keys, rest)
    return keys


def _per_node(
    processes: tuple[str, str], keys: Mapping[str, tuple[str, str]], rest: Mapping[str, Given]
) -> tuple[str, str]:
    """Return the processes per node of ``accelerate launch``, whose flag has those of all nodes. Raises UsageError."""
    total, written = processes
    nodes = str(rest["nnodes"].raw) if "nnodes" in rest else keys.get("nnodes", ("1", ""))[0]
    if not (total.isdecimal() and nodes.isdecimal() and int(nodes)) or int(total) % int(nodes):
        raise UsageError(
            f"{written} of accelerate launch cannot be divided among {nodes} nodes.",
            hint="Give a multiple of the nodes, or --nproc for each node.",
        )
    return str(int(total) // int(nodes)), written


def _program(launch: _Launch, rest: Mapping[str, Given]) -> tuple[dict[str, Raw], list[str]]:
    """Return the key of the program and its arguments. A script that lies here is sent; another is in the image."""
    target, *arguments = launch.program
    legacy = launch.launcher == "torch.distributed.launch" and "use-env" not in launch.switches
    if legacy or (launch.launcher == "deepspeed" and "no-local-rank" not in launch.switches):
        arguments.insert(0, f"--{'local-rank' if legacy else 'local_rank'}=${{local_rank}}")
    if "module" in launch.switches:
        return {"module": target}, arguments
    if "no-python" in launch.switches:
        return {"command": [target]}, arguments
    folder = str(rest["code"].raw) if "code" in rest else "."
    if Path(folder, target).is_file():
        return {"script": os.path.normpath(Path(folder, target))}, arguments
    python = rest["python"].raw if "python" in rest else "python3" if "runtimeImage" in rest else "python"
    return {"command": [python, target]}, arguments


def _list_value(given: Given | None) -> list[Raw]:
    return given.raw if given is not None and isinstance(given.raw, list) else []


def _has_precedence(kind: OriginKind, command: OriginKind) -> bool:
    order = list(OriginKind)
    return order.index(kind) <= order.index(command)


def _summary(launch: _Launch, taken: Mapping[str, Given], program: Mapping[str, Raw]) -> str:
    keys = ("nnodes", "nproc", "gpus", "maxRestarts", *program, "args")
    settings = [(key, taken[key].raw) for key in keys if key in taken and taken[key].raw != []]
    parts = [f"{key} {' '.join(map(str, raw)) if isinstance(raw, list) else raw}" for key, raw in settings]
    dropped = f"; the job has its own {', '.join(dict.fromkeys(launch.dropped))}" if launch.dropped else ""
    return f"The command of {launch.launcher} becomes {', '.join(parts)}{dropped}."
