"""Flags of other launchers: accepted spellings, and suggestions for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.fields import JOB_FILES

SPELLINGS: Final[Mapping[str, str]] = {"--nproc-per-node": "--nproc"}
"""Flag of torchrun → our flag with the same meaning. ``_`` and ``-`` are equivalent, as in torchrun."""

MEANT: Final[Mapping[str, str]] = {
    "--replicas": "--nnodes",
    "--workers": "--nnodes",
    "--num-workers": "--nnodes",
    "--nodes": "--nnodes",
    "--num-nodes": "--nnodes",
    "--num-machines": "--nnodes",
    "--num-processes": "--nproc",
    "--processes": "--nproc",
    "--gpus-per-node": "--gpus",
    "--num-gpus": "--gpus",
    "--restarts": "--max-restarts",
    "--volume": "--mount",
    "--pvc": "--mount",
    "-e": "--env",
    "-m": "--module",
}
"""Flag of another launcher → our closest flag."""

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
        return word
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
    return f"Did you mean '{MEANT[flag]}'?" if flag in MEANT else ""
