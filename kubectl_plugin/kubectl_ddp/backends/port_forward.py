"""Context manager for ``kubectl port-forward`` to a port in a cluster."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from typing import Final

from kubectl_ddp.backends.base import ExecCommand
from kubectl_ddp.errors import NotFound, Unreachable

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class PortForward:
    """Open tunnel of a ``kubectl port-forward`` process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port
        """Local port of the tunnel."""

    def wait(self) -> None:
        """Block until the other side closes the tunnel."""
        for _ in self._process.stdout or ():
            continue


@contextlib.contextmanager
def open_port_forward(handover: ExecCommand) -> Iterator[PortForward]:
    """Open a tunnel, and close it at the end of the block. Raises NotFound, Unreachable."""
    try:
        process = subprocess.Popen(
            handover.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise NotFound(f"Program '{handover.words[0]}' was not found.") from None
    with process:
        try:
            first = process.stdout.readline() if process.stdout else ""
            opened = _FORWARDING.match(first)
            if opened is None:
                process.terminate()
                said = (process.stderr.read() if process.stderr else "").strip().splitlines()
                raise Unreachable(f"kubectl port-forward opens no way: {said[-1] if said else first.strip()}.")
            yield PortForward(process, int(opened[1]))
        finally:
            process.terminate()
