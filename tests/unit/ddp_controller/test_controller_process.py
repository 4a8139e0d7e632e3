"""The controller as a process: it waits for an API server that is away, also at its start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_controller.loop import retry_unreachable
from kubectl_ddp.errors import Forbidden, Unreachable
from kubectl_ddp.util.concurrency import Stop
from tests.support.api_server import ALL_ALLOWED, ApiServer, kubeconfig, serving
from tests.support.ports import free_port
from tests.unit.ddp_controller.test_loop import GROUPS

REVIEWS = "POST /apis/authorization.k8s.io/v1/selfsubject"


@pytest.fixture
def port() -> int:
    """A port on which no API server listens yet."""
    return free_port()


@pytest.fixture
def controller(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    config = kubeconfig(tmp_path, f"http://127.0.0.1:{port}")
    process = subprocess.Popen(
        [sys.executable, "-m", "ddp_controller", "--port", str(free_port())],
        env=os.environ | {"KUBECONFIG": str(config)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def wait_for(event: str, process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if json.loads(line)["event"] == event:
            return
    pytest.fail(f"it ended with {process.wait()} before '{event}'")


def test_it_starts_once_the_api_server_is_up(controller: subprocess.Popen[str], port: int) -> None:
    wait_for("unreachable", controller)
    server = ApiServer(GROUPS)
    server.next(f"{REVIEWS}rulesreviews", ALL_ALLOWED)
    server.next(f"{REVIEWS}accessreviews", *[ALL_ALLOWED] * 99)
    with serving(server, port):
        wait_for("started", controller)
        controller.send_signal(signal.SIGTERM)
        assert controller.wait(timeout=20) == 0


def test_it_ends_at_sigterm_while_it_waits(controller: subprocess.Popen[str]) -> None:
    wait_for("unreachable", controller)
    controller.send_signal(signal.SIGTERM)
    assert controller.wait(timeout=20) == 0


def test_it_gives_up_after_five_minutes_and_at_once_where_waiting_does_not_help() -> None:
    now, stop = [0.0], Stop()
    stop.wait = lambda seconds: now.__setitem__(0, now[0] + seconds)  # type: ignore[method-assign]

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(Unreachable):
        retry_unreachable(lambda: fail(Unreachable("away")), stop, clock=lambda: now[0])
    assert 300.0 < now[0] < 320.0
    with pytest.raises(Forbidden):
        retry_unreachable(lambda: fail(Forbidden("a right is missing")), stop, clock=lambda: now[0])
    assert now[0] < 320.0
