"""Commands and flags of other programs: accepted spellings, and suggestions for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

from ddp_trainer.common.safe_text import redact_text
from kubectl_ddp.cli.registry import ALIASES, COMMANDS, DESTRUCTIVE
from kubectl_ddp.errors import UsageError, suggest_close_match
from kubectl_ddp.spec.fields import JOB_FILES

SPELLINGS: Final[Mapping[str, str]] = {"--nproc-per-node": "--nproc", "-e": "--env"}
"""Flag of torchrun or docker → our flag with the same meaning. ``_`` and ``-`` are equivalent, as in torchrun."""

FLAG_EQUIVALENTS: Final[Mapping[str, str]] = {
    "--replicas": "--nnodes",
    "--workers": "--nnodes",
    "--num-workers": "--nnodes",
    "--nodes": "--nnodes",
    "--num-nodes": "--nnodes",
    "--num-machines": "--nnodes",
    "--num-processes": "--nproc",
    "--processes": "--nproc",
    "-N": "--nnodes",
    "--ntasks-per-node": "--nproc",
    **dict.fromkeys(("--gpu", "--ngpus", "--num-gpus", "--gpus-per-node"), "--gpus"),
    **dict.fromkeys(("--cpus", "--cpus-per-task"), "--cpu"),
    "--mem": "--memory",
    **dict.fromkeys(("--restarts", "--retries", "--max-retries"), "--max-restarts"),
    **dict.fromkeys(("--time", "--time-limit", "--max-time", "--walltime"), "--deadline"),
    "--partition": "--queue",
    "--job-name": "--name",
    **dict.fromkeys(("--docker-image", "--container"), "--image"),
    **dict.fromkeys(("--workdir", "--working-dir"), "--code"),
    "--env-file": "--env",
    **dict.fromkeys(("--interactive", "-i", "-t"), "--follow"),
    "--dryrun": "--dry-run",
    **dict.fromkeys(("--volume", "--pvc"), "--mount"),
    **dict.fromkeys(("--shm-size", "--ipc"), "--shm"),
    **dict.fromkeys(("--accelerator", "--accelerators", "--constraint"), "--gpu-type"),
    **dict.fromkeys(("--node-list", "--nodelist", "--instance-type", "--region", "--zone"), "--node-selector"),
    "--account": "--queue",
    "--qos": "--priority",
    "--rm": "--ttl",
    "--restart-policy": "--max-restarts",
    **dict.fromkeys(("--force", "--overwrite"), "--replace"),
    "-m": "--module",
}
"""Flag of another launcher → our closest flag."""

_DETACHED_HINT: Final = "Leave it out: the job continues when the command has ended."
_CHECKPOINTS: Final = (
    "A path that the script writes to is an argument after '--'. --checkpoint-claim names a volume on a cluster."
)
_ELASTIC: Final = "Write '--nnodes MIN:MAX' for an elastic job."
FLAG_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--elastic", "--min-nodes", "--max-nodes", "--min-replicas", "--max-replicas"), _ELASTIC),
    **dict.fromkeys(("--spot", "--use-spot"), "Select such nodes with '--node-selector' and '--toleration'."),
    **dict.fromkeys(("--port", "-p"), "'port-forward JOB PORT' reaches a port of the running job."),
    "--array": "Submit one job for each value, each with its own --name.",
    "--resume": "'resume JOB' continues a suspended job; a flag of the script follows '--'.",
    **dict.fromkeys(("--detach", "-d", "--background"), _DETACHED_HINT),
    **dict.fromkeys(("--checkpoint-dir", "--ckpt-dir"), _CHECKPOINTS),
}
"""Flag of another launcher that none of ours replaces → a hint."""

RENDEZVOUS: Final = frozenset(
    {"--standalone", "--node-rank", "--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"}
)
"""Flags of torchrun that configure the rendezvous."""

LAUNCHERS: Final = frozenset({"torchrun", "ddp-launch", "deepspeed", "accelerate", "mpirun", "horovodrun"})
INTERPRETERS: Final = frozenset({"python", "python3"})


def is_job_file(path: str) -> bool:
    """Return whether a path is treated as a job file and not as a script."""
    return path.lower().endswith(JOB_FILES)


def normalize_flag(word: str) -> str:
    """Normalize the spelling of a long flag: ``--nproc_per_node=2`` becomes ``--nproc=2``.

    >>> normalize_flag("--max_restarts=3"), normalize_flag("--nproc_per_node"), normalize_flag("a_b.py")
    ('--max-restarts=3', '--nproc', 'a_b.py')
    """
    if not word.startswith("--"):
        return SPELLINGS.get(word, word)
    flag, equals, value = word.partition("=")
    flag = flag.replace("_", "-")
    return SPELLINGS.get(flag, flag) + equals + value


def check_program(program: str, path: str) -> None:
    """Reject a launcher or an interpreter in place of a script. Raises UsageError."""
    name = PurePath(program).name
    if name in LAUNCHERS:
        raise UsageError(
            f"'{name}' starts ranks itself, and the launcher of the job starts them already.",
            hint=f"Submit the script: '{path} train.py --nproc 2 -- ARGS'; or the whole line: "
            f"'{path} --command \"{name} ...\"'.",
        )
    if name in INTERPRETERS:
        raise UsageError(
            f"'{name}' is not a script; the launcher runs scripts with Python.",
            hint=f"Leave it out: '{path} train.py -- ARGS'.",
        )


def check_no_extra_args(script: str, more: Sequence[str], path: str) -> None:
    """Reject words after the script without a ``--`` before them. Raises UsageError."""
    if more:
        words = " ".join(more)
        raise UsageError(
            f"'{more[0]}' follows the script, and is not a flag.",
            hint=f"Arguments of the program follow '--': '{path} {script} -- {words}'.",
        )


def suggest_flag(flag: str) -> str:
    """Return a suggestion for a flag of another launcher; empty if the flag is unknown.

    >>> suggest_flag("--replicas")
    "Did you mean '--nnodes'?"
    """
    flag = normalize_flag(flag) if flag.startswith("--") else flag
    if flag in RENDEZVOUS:
        place = ", or write --local to run on this machine" if flag == "--standalone" else ""
        return f"Leave it out: every job has a rendezvous store{place}."
    return f"Did you mean '{FLAG_EQUIVALENTS[flag]}'?" if flag in FLAG_EQUIVALENTS else FLAG_HINTS.get(flag, "")


_SUBMIT: Final = ("submit SCRIPT",)
_APPLY: Final = ("submit -f FILE",)
_LOGS: Final = ("logs JOB -f",)
_EXEC: Final = ("exec JOB -- COMMAND",)
_CHANGE: Final = ("scale JOB --nnodes N", "clone JOB --name NAME")
_STATUS: Final = ("status JOB",)

COMMAND_EQUIVALENTS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("launch", "train", "torchrun", "python", "python3", "accelerate", "deepspeed"), _SUBMIT),
    **dict.fromkeys(("sbatch", "srun", "qsub", "mpirun"), _SUBMIT),
    **dict.fromkeys(("apply", "create", "replace"), _APPLY),
    **dict.fromkeys(("build", "push"), ("submit -f FILE --build",)),
    **dict.fromkeys(("jobs", "job", "queue", "ps", "squeue", "qstat"), ("list",)),
    **dict.fromkeys(("log", "tail", "attach"), _LOGS),
    **dict.fromkeys(("shell", "ssh", "bash"), _EXEC),
    **dict.fromkeys(("edit", "patch", "set", "label", "annotate", "update"), _CHANGE),
    **dict.fromkeys(("watch", "monitor", "metrics"), ("top JOB",)),
    **dict.fromkeys(("gpu", "gpus", "show-gpus", "nodes", "sinfo"), ("capacity",)),
    **dict.fromkeys(("check", "cluster-info", "auth", "whoami", "login", "logout"), ("doctor",)),
    **dict.fromkeys(("info", "show", "inspect", "stat"), _STATUS),
    **dict.fromkeys(("diagnose", "debug"), ("why JOB",)),
    **dict.fromkeys(("rerun", "retry", "reboot"), ("restart JOB",)),
    **dict.fromkeys(("unpause", "continue"), ("resume JOB",)),
    **dict.fromkeys(("rename", "copy"), ("clone JOB --name NAME",)),
    **dict.fromkeys(("plot", "open", "ui", "web"), ("report JOB",)),
    "resize": ("scale JOB --nnodes N",),
    "nvidia-smi": ("exec JOB -- nvidia-smi", "capacity"),
    **dict.fromkeys(("grafana", "prometheus"), ("dashboard JOB",)),
    "tensorboard": ("report JOB", "top JOB"),
    **dict.fromkeys(("use-context", "context", "contexts"), ("list --context NAME",)),
    "install": ("doctor",),
    "compare": ("report A B",),
    "validate": ("submit -f FILE --dry-run=server",),
    "diff": ("submit -f FILE --dry-run=server", "report A B"),
    **dict.fromkeys(("forward", "tunnel"), ("port-forward JOB",)),
    "start": ("submit SCRIPT", "resume JOB"),
    "autoscale": ("submit SCRIPT --nnodes MIN:MAX",),
    "cp": ("exec JOB -- cat FILE",),
    "api-resources": ("explain",),
    "cost-report": ("report JOB",),
}
"""Command of another program → our commands with the same purpose."""

STOP_SYNONYMS: Final = frozenset({"stop", "kill", "pause", "abort", "end", "scancel", "qdel"})
"""Commands of other programs that end a job, with or without its state."""
DELETE_SYNONYMS: Final = frozenset({"down", "rm", "remove", "destroy", "terminate", "purge", "drop"})
"""Commands of other programs that end and remove a job or a cluster."""
PREFIXES: Final = frozenset({"job", "jobs", "sky", "ray", "runai", "kubectl", "ddp", "rollout"})
"""Words of other programs in front of a command, as in ``jobs queue`` and ``rollout restart``."""

_MERGED: Final = "Its output is that of all pods and restarts; '--rank 0-7' selects ranks."
_JSON: Final = {"--json": "Write '-o json'."}
_YES: Final = "Did you mean '--yes'?"
_NAMED: Final = "Name the job, as in '{path} {command} JOB'."
FLAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "logs": {
        **dict.fromkeys(("-c", "--container", "--all-containers", "-p", "--previous", "--prefix"), _MERGED),
        **dict.fromkeys(("-l", "--selector"), _NAMED),
        "--lines": "Did you mean '--tail'?",
    },
    "report": {"--html": "Leave it out: the report is an HTML page, and -o FILE names it."},
    "restart": {"--force": _YES},
    "delete": dict.fromkeys(("-f", "--filename", "-l", "--selector"), _NAMED) | {"--force": _YES},
    "list": {**_JSON, "--all": "Write '-A' for all namespaces.", "--state": "'{path} list | grep STATE' filters."},
    "scale": dict.fromkeys(("--replicas", "--nodes", "--num-nodes", "--up", "--down"), "Did you mean '--nnodes'?"),
    "status": dict.fromkeys(("-w", "--watch"), "'{path} get JOB -w' prints changes, and '{path} top JOB' is live.")
    | _JSON,
    "events": {"--for": _NAMED},
    "suspend": dict.fromkeys(("-a", "--all"), _NAMED),
    "version": {"--client": "Write '{path} version'."},
    "explain": {"--recursive": "Leave it out: keys of a job file have no keys below them."},
    "port-forward": {"--address": "'kubectl port-forward' has it; '{path} status JOB --ranks' names the pods."},
}
"""Command → flag of kubectl's command of this name → a hint, with ``{path}`` and ``{command}`` of ours."""


WORDS: Final[Mapping[str, str]] = {
    "logs": "Write '--rank R' for the lines of a rank.",
    "wait": "Write '--timeout TIME' or '--for=STATE'.",
    "report": "'{path} report A B' compares two jobs; -o FILE names the page.",
}
"""Command → hint for an extra argument."""


def suggest_command(words: Sequence[str], path: str) -> str:
    """Return a suggestion for an unknown command and the words after it.

    ``delete`` is suggested only for its synonyms, never for a misspelled command.
    """
    word = words[0].lower()
    if word in PREFIXES and len(words) > 1 and not words[1].startswith("-"):
        following = words[1].lower()
        if following in COMMANDS or following in ALIASES:
            return f"Use '{redact_text(' '.join([path, *words[1:]]))}'."
        return suggest_command(words[1:], path)
    if word in COMMAND_EQUIVALENTS:
        commands = " or ".join(f"'{path} {command}'" for command in COMMAND_EQUIVALENTS[word])
        return f"Use {commands}."
    if word in STOP_SYNONYMS:
        return f"'{path} suspend JOB' stops a job and keeps it, '{path} delete JOB' removes it."
    if word in DELETE_SYNONYMS:
        return f"'{path} delete JOB' removes a job, '{path} suspend JOB' stops it and keeps it."
    harmless = [name for name in (*COMMANDS, *ALIASES) if name not in DESTRUCTIVE]
    return suggest_close_match(word, harmless) or f"Run '{path} --help' to see them all."


def suggest_for_extra_argument(command: str, path: str) -> str:
    """Return a hint for an extra argument of a command; empty if there is none."""
    return WORDS.get(command, "").format(path=path)


def suggest_flag_of(command: str, flag: str, path: str) -> str:
    """Return a hint for kubectl's flag of a command of the same name; empty if there is none."""
    return FLAGS.get(command, {}).get(flag, "").format(path=path, command=command)
