"""Launchers that a worker has started. The ranks that such a launcher starts in one rank form a separate group.

:func:`nested_launcher` finds one below a running worker, :func:`~ddp_trainer.launch.failures.launcher_in_stderr` in the
output of a failed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

from ddp_trainer.process.process_tree import PROC, children_of

_LAUNCHERS: Final = {
    "torchrun": "torchrun",
    "ddp-launch": "ddp-launch",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate": "accelerate launch",
    "deepspeed": "deepspeed",
}
"""Name of a program or module → the launcher that it is."""
_STANDALONE: Final = "--standalone"
_FIRST_WORDS: Final = 4
"""Words of a command line that may name its program: ``python -u -m torch.distributed.run``."""


def nested_launcher(pid: int, proc: Path = PROC) -> str:
    """Return the launcher that a process or its children have started, except for this machine alone; empty for none.

    Args:
        pid: Process id of a worker.
        proc: Mount point of the proc file system.
    """
    for child in children_of(pid):
        try:
            words = (proc / str(child) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if found := launcher_of(words) or nested_launcher(child, proc):
            return found
    return ""


def launcher_of(words: Sequence[str]) -> str:
    """Return the launcher that a command line starts, except for this machine alone; empty for none.

    >>> launcher_of(["python", "-m", "torch.distributed.run"]), launcher_of(["torchrun", "--standalone"])
    ('torchrun', '')
    """
    if _STANDALONE in words:
        return ""
    return next((known for word in words[:_FIRST_WORDS] if (known := _LAUNCHERS.get(PurePath(word).name))), "")
