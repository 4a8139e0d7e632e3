"""What a fork server receives of a launcher that dies while it sends a request."""

from __future__ import annotations

import os
import socket

import pytest

from ddp_trainer.launch.in_worker.fork_server_process import DESCRIPTORS, LENGTH, requests


@pytest.mark.parametrize(
    ("head", "body", "count"),
    [
        (LENGTH.pack(9), b"", DESCRIPTORS),
        (LENGTH.pack(9), b"{}", DESCRIPTORS),
        (LENGTH.pack(2), b"{}", DESCRIPTORS - 1),
    ],
    ids=["no body", "half a body", "too few descriptors"],
)
def test_the_descriptors_of_an_incomplete_request_are_closed(head: bytes, body: bytes, count: int) -> None:
    control, child_end = socket.socketpair()
    source, sink = os.pipe()
    with control:
        with child_end:
            socket.send_fds(child_end, [head], [sink] * count)
            child_end.sendall(body)
        os.close(sink)
        assert list(requests(control, DESCRIPTORS)) == []
    os.set_blocking(source, False)
    assert os.read(source, 1) == b""  # an open copy of the other end would raise BlockingIOError
    os.close(source)


def test_requests_are_received_with_their_descriptors_until_the_launcher_is_gone() -> None:
    control, child_end = socket.socketpair()
    with control:
        with child_end:
            socket.send_fds(child_end, [LENGTH.pack(8)], [control.fileno()] * DESCRIPTORS)
            child_end.sendall(b'{"a": 1}')
        ((request, descriptors),) = requests(control, DESCRIPTORS)
    assert request == {"a": 1}
    assert len(set(descriptors)) == DESCRIPTORS
    for descriptor in descriptors:
        os.close(descriptor)
