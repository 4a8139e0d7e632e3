"""Metrics and health over HTTP: a kubelet or Prometheus reaches them by the address of the pod, of either family."""

from __future__ import annotations

import http.client
import socket

import pytest

from ddp_controller.metrics import ControllerMetrics
from tests.support.ports import free_port


def has_address(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, 0), family=family).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_it_listens_on_both_families(address: str) -> None:
    if not has_address(address):
        pytest.skip(f"this machine has no {address}")
    port = free_port()
    end = ControllerMetrics().serve(port)
    for path, text in (("/metrics", b"ddp_controller_leader 0.0"), ("/healthz", b"ok")):
        connection = http.client.HTTPConnection(address, port, timeout=20)
        connection.request("GET", path)
        assert text in connection.getresponse().read()
        connection.close()
    end()
