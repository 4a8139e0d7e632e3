"""Commands and flags of other programs, and those that mean the same here. Imported for errors only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ddp_trainer.common.safe_text import redact_text
from kubectl_ddp.cli.registry import ALIASES, COMMANDS, DESTRUCTIVE
from kubectl_ddp.errors import suggest_close_match

_SUBMIT: Final = ("submit SCRIPT",)
_APPLY: Final = ("submit -f FILE",)
_LOGS: Final = ("logs JOB -f",)
_EXEC: Final = ("exec JOB -- COMMAND",)
_CHANGE: Final = ("scale JOB --nnodes N", "clone JOB --name NAME")

MEANT: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("launch", "train", "torchrun", "python", "python3", "accelerate", "deepspeed"), _SUBMIT),
    **dict.fromkeys(("sbatch", "srun", "qsub", "mpirun"), _SUBMIT),
    **dict.fromkeys(("apply", "create", "replace"), _APPLY),
    **dict.fromkeys(("build", "push"), ("submit -f FILE --build",)),
    **dict.fromkeys(("jobs", "job", "queue", "ps", "squeue", "qstat"), ("list",)),
    **dict.fromkeys(("log", "tail", "attach"), _LOGS),
    **dict.fromkeys(("shell", "ssh", "bash"), _EXEC),
    **dict.fromkeys(("edit", "patch", "set", "label", "annotate"), _CHANGE),
    **dict.fromkeys(("watch", "monitor"), ("top JOB",)),
    **dict.fromkeys(("gpus", "show-gpus", "nodes", "sinfo"), ("capacity",)),
    **dict.fromkeys(("check", "cluster-info", "auth", "whoami"), ("doctor",)),
    **dict.fromkeys(("validate", "diff"), ("submit -f FILE --dry-run=server",)),
    **dict.fromkeys(("forward", "tunnel"), ("port-forward JOB",)),
    "start": ("submit SCRIPT", "resume JOB"),
    "autoscale": ("submit SCRIPT --nnodes MIN:MAX",),
    "cp": ("exec JOB -- cat FILE",),
    "api-resources": ("explain",),
    "cost-report": ("report JOB",),
}
"""Command of another program → our commands with the same purpose."""

STOPPING: Final = frozenset({"stop", "kill", "pause", "abort", "end", "scancel", "qdel"})
"""Commands of other programs that end a job, with or without its state."""
REMOVING: Final = frozenset({"down", "rm", "remove", "destroy", "terminate", "purge", "drop"})
"""Commands of other programs that end and remove a job or a cluster."""
PREFIXES: Final = frozenset({"job", "jobs", "sky", "ray", "runai", "kubectl", "ddp", "rollout"})
"""Words of other programs in front of a command, as in ``jobs queue`` and ``rollout restart``."""

_MERGED: Final = "Its output is that of all pods and restarts; '--rank 0-7' selects ranks."
_NAMED: Final = "Name the job, as in '{path} {command} JOB'."
FLAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "logs": {
        **dict.fromkeys(("-c", "--container", "--all-containers", "-p", "--previous", "--prefix"), _MERGED),
        **dict.fromkeys(("-l", "--selector"), _NAMED),
    },
    "delete": dict.fromkeys(("-f", "--filename", "-l", "--selector"), _NAMED),
    "scale": dict.fromkeys(("--replicas", "--nodes", "--num-nodes"), "Did you mean '--nnodes'?"),
    "status": dict.fromkeys(("-w", "--watch"), "'{path} get JOB -w' prints changes, and '{path} top JOB' is live."),
    "events": {"--for": _NAMED},
    "suspend": dict.fromkeys(("-a", "--all"), _NAMED),
    "version": {"--client": "Write '{path} version'."},
    "explain": {"--recursive": "Leave it out: keys of a job file have no keys below them."},
    "port-forward": {"--address": "'kubectl port-forward' has it; '{path} status JOB --ranks' names the pods."},
}
"""Command → flag of kubectl's command of this name → a hint, with ``{path}`` and ``{command}`` of ours."""


def suggest_command(words: Sequence[str], path: str) -> str:
    """Return a suggestion for an unknown command and the words after it; never a destructive command."""
    word = words[0].lower()
    if word in PREFIXES and len(words) > 1 and not words[1].startswith("-"):
        following = words[1].lower()
        if following in COMMANDS or following in ALIASES:
            return f"Use '{redact_text(' '.join([path, *words[1:]]))}'."
        return suggest_command(words[1:], path)
    if word in MEANT:
        commands = " or ".join(f"'{path} {command}'" for command in MEANT[word])
        return f"Use {commands}."
    if word in STOPPING:
        return f"'{path} suspend JOB' stops a job and keeps it."
    if word in REMOVING:
        return f"'{path} suspend JOB' stops a job and keeps it; '{path} --help' lists the commands that remove one."
    harmless = [name for name in (*COMMANDS, *ALIASES) if name not in DESTRUCTIVE]
    return suggest_close_match(word, harmless) or f"Run '{path} --help' to see them all."


def suggest_flag_of(command: str, flag: str, path: str) -> str:
    """Return a hint for kubectl's flag of a command of the same name; empty if there is none."""
    return FLAGS.get(command, {}).get(flag, "").format(path=path, command=command)
