"""Execution of a command in a pod's context, which on this machine is an environment and a directory.

The command inherits the container's mark, so it ends with the container.
"""

from __future__ import annotations

import os
from pathlib import Path

from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.backends.local.pods import container_status
from kubectl_ddp.backends.local.process import leader
from kubectl_ddp.errors import NotFound
from kubectl_ddp.kube.objects import Object


def build_exec_command(pod: Object, entry: Entry) -> ExecCommand:
    """Return the command with the pod's environment and directory; it inherits the terminal.

    Raises:
        NotFound: If the pod is not running.
    """
    status = container_status(pod)
    mark = str(status.get("containerID", "")).removeprefix("local://")
    first = leader(mark) if mark and "running" in status["state"] else None
    try:
        if first is None:
            raise FileNotFoundError
        block = Path(f"/proc/{first}/environ").read_bytes()
        directory = str(Path(f"/proc/{first}/cwd").readlink())
    except OSError:
        name = pod["metadata"]["name"]
        raise NotFound(f"Pod '{name}' does not run just now.", hint="Try again once it does.") from None
    variables = (os.fsdecode(each).partition("=") for each in block.split(b"\0") if each)
    environ = {name: value for name, _, value in variables} | dict(entry.variables)
    return ExecCommand(words=entry.words, environ=environ, directory=directory)
