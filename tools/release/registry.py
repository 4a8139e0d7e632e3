"""Charts as OCI artifacts, rehearsed with a registry on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.release.errors import CannotRelease, run_program

START_SECONDS: Final = 20.0
_CONFIG: Final = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error}}
"""


def push_charts(charts: Sequence[Path], helm: str | None) -> Iterator[str]:
    """Push each chart to a registry, pull it again, and compare the bytes.

    Raises CannotRelease if they differ. Yields the result, or what is missing.
    """
    if helm is None or shutil.which("docker-registry") is None:
        yield "left out: docker-registry is not installed, so no chart was pushed to a registry"
        return
    with tempfile.TemporaryDirectory(prefix="ddp-registry-") as folder, _registry(Path(folder)) as address:
        for chart in charts:
            run_program(helm, "push", chart, f"oci://{address}/charts", "--plain-http")
            name, _, number = chart.name.removesuffix(".tgz").rpartition("-")
            where = (f"oci://{address}/charts/{name}", "--version", number, "--destination", folder)
            run_program(helm, "pull", *where, "--plain-http")
            if _digest(Path(folder, chart.name)) != _digest(chart):
                raise CannotRelease(f"{chart.name} is another one after it was pushed to a registry and pulled.")
    yield "holds: pushed to a registry and pulled again, the charts have the same bytes"


@contextlib.contextmanager
def _registry(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder / "store", port=port))
    command = ["docker-registry", "serve", folder / "config.yml"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_until_open(port, server)
            yield f"localhost:{port}"
        finally:
            server.kill()


def _wait_until_open(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.1)
    raise CannotRelease("docker-registry did not start.")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
