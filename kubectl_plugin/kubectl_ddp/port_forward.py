"""A way through kubectl to a port of a cluster, for as long as a ``with`` lasts."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from typing import Final

from kubectl_ddp.backend import ExecCommand
from kubectl_ddp.errors import NotFound, Unreachable

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class PortForward:
    """What ``kubectl port-forward`` has opened."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port
        """Of this machine."""

    def wait(self) -> None:
        """Until it is closed from the other side."""
        for _ in self._process.stdout or ():
            continue


@contextlib.contextmanager
def open_port_forward(handover: ExecCommand) -> Iterator[PortForward]:
    """Open a tunnel, and close it at the end. Raises NotFound, Unreachable."""
    try:
        process = subprocess.Popen(
            handover.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise NotFound(f"There is no program '{handover.words[0]}'.") from None
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
