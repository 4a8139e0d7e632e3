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
    ours, theirs = socket.socketpair()
    source, sink = os.pipe()
    with ours:
        with theirs:
            socket.send_fds(theirs, [head], [sink] * count)
            theirs.sendall(body)
        os.close(sink)
        assert list(requests(ours, DESCRIPTORS)) == []
    os.set_blocking(source, False)
    assert os.read(source, 1) == b""  # an open copy of the other end would raise BlockingIOError
    os.close(source)


def test_requests_are_received_with_their_descriptors_until_the_launcher_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            socket.send_fds(theirs, [LENGTH.pack(8)], [ours.fileno()] * DESCRIPTORS)
            theirs.sendall(b'{"a": 1}')
        ((request, descriptors),) = requests(ours, DESCRIPTORS)
    assert request == {"a": 1}
    assert len(set(descriptors)) == DESCRIPTORS
    for descriptor in descriptors:
        os.close(descriptor)
