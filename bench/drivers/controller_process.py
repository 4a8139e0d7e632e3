"""Processes of the controller on this machine, each behind a TCP proxy that can cut it off from the API server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.drivers.jobs import ROOT
from bench.harness import CannotMeasure
from bench.peers.torchrun_driver import free_port
from kubectl_ddp.backends.cluster.http.kubeconfig import read_context

Json = dict[str, Any]

READY_SECONDS: Final = 30.0
END_SECONDS: Final = 30.0


@dataclass(slots=True)
class ControllerProcess:
    """One controller for the jobs of one namespace. It can be killed and started again."""

    namespace: str
    flags: tuple[str, ...] = ()
    """Further flags of the controller."""
    kubeconfig: str = field(default_factory=lambda: os.environ.get("KUBECONFIG", ""))
    decisions: list[Json] = field(default_factory=list)
    """Lines that all its processes have printed, oldest first."""
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None
    _is_ready: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start a process, and wait until it runs. Raises CannotMeasure."""
        flags = ("--namespace", self.namespace, "--only-namespace", self.namespace, "--port", str(free_port()))
        self._is_ready.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ddp_controller", *flags, *self.flags],
            cwd=ROOT,
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Wait until the process has read the cluster's objects. Raises CannotMeasure."""
        if not self._is_ready.wait(READY_SECONDS):
            raise CannotMeasure(f"The controller did not start: {self.decisions[-1:]}")

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with contextlib.suppress(ValueError):
                self.decisions.append(json.loads(line))
                self._is_ready.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._reader is not None:
                self._reader.join()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return None if self._process is None else self._process.poll()


@contextlib.contextmanager
def controller(namespace: str, *flags: str) -> Iterator[ControllerProcess]:
    """Yield a running controller for a namespace. Raises CannotMeasure."""
    process = ControllerProcess(namespace, flags)
    process.start()
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.stop()


class TcpProxy:
    """Forwards connections to one server, unless it is cut. Bytes of a cut connection arrive once it is joined."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_open = threading.Event()
        self._is_open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Port on the loopback interface."""
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Forward nothing from now on. Connections stay open, as behind a broken network."""
        self._is_open.clear()

    def join(self) -> None:
        """Forward again."""
        self._is_open.set()

    def close(self) -> None:
        """Accept no further connection."""
        self._listener.close()
        self.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._is_open.wait()
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            back = threading.Thread(target=self._forward, args=(server, client), daemon=True)
            back.start()
            self._forward(client, server)
            back.join()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                self._is_open.wait()
                target.sendall(chunk)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def kubeconfig_through(proxy: TcpProxy, folder: Path) -> str:
    """Write a kubeconfig that reaches the cluster of this environment through a proxy, and return its path."""
    chosen = read_context(os.environ["KUBECONFIG"])
    folder.mkdir(parents=True, exist_ok=True)
    name = chosen.cluster.get("tls-server-name") or urlsplit(chosen.cluster["server"]).hostname
    cluster = {**chosen.cluster, "server": f"https://127.0.0.1:{proxy.port}", "tls-server-name": name}
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "proxy",
                "clusters": [{"name": "proxy", "cluster": cluster}],
                "users": [{"name": "proxy", "user": chosen.user}],
                "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            }
        )
    )
    return str(path)


def server_address() -> tuple[str, int]:
    """Return host and port of the API server of this environment."""
    url = urlsplit(str(read_context(os.environ["KUBECONFIG"]).cluster["server"]))
    return url.hostname or "", url.port or 443
