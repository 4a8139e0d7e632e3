"""``torchrun`` in a command of the user.

Where the ranks run already, it becomes the program that it would start: the launcher calls :func:`install` if
``DDP_TORCHRUN_SHIM`` is set, and each rank of a command, such as ``bash run.sh``, finds :func:`main` under that name.

Where nothing of ours started the command, as in the pods of a TrainJob, ``sitecustomize`` starts the launcher instead
of torchrun. The launcher then takes the flags of :func:`with_platform_flags`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.config import program_of
from ddp_trainer.launch.flags import parse, remaining_args
from ddp_trainer.launch.protocol.console import LaunchError, log_line

_PROGRAM_FLAGS: Final = frozenset({"module", "no_python", "run_path"})


def install(environ: dict[str, str], directory: Path) -> None:
    """Write ``torchrun`` to a directory, and put it first in the ``PATH`` of the workers."""
    file = directory / "bin" / "torchrun"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!{sys.executable}\nfrom {__name__} import main\nmain()\n")
    file.chmod(0o755)
    environ["PATH"] = os.pathsep.join([str(file.parent), environ.get("PATH", os.defpath)])


def main() -> None:
    """Replace this process by the program behind torchrun's flags, as the rank that it is."""
    try:
        arguments = parse(sys.argv[1:], {})
        program = program_of(arguments, os.environ)
    except LaunchError as error:
        log_line(str(error))
        sys.exit(error.exit_code)
    given = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(arguments.given - _PROGRAM_FLAGS))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if given and local_rank == 0:
        log_line(f"The job has started the ranks of this torchrun already: {given} has no effect.")
    words = program.command(local_rank)
    # The parent may be a shell, which a signal to its group ends with this process.
    words[words.index(str(os.getpid()))] = str(os.getppid())
    os.execv(words[0], words)  # noqa: S606 - no shell is wanted


def with_platform_flags(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return torchrun's arguments with the flags of the platform, which replace those of the user."""
    platforms = shlex.split(environ.get(Env.LAUNCH_FLAGS, ""))
    program = remaining_args(argv)
    own = argv[: len(argv) - len(program)]
    return [*own, *platforms, *program]
