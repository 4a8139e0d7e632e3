"""Connections of a group are cut, and those that other threads open at the same time are not."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from tests.support.ports import free_port

pytestmark = pytest.mark.any_torch

LONG = timedelta(minutes=1)
"""The group's timeout: a test that waits for it has failed."""


class Foreign:
    """A server with an event loop, and a client of it, as a thread for an object store or a tracker has."""

    def __init__(self, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.client = stack.enter_context(socket.create_connection(listener.getsockname()))
        self.served = stack.enter_context(listener.accept()[0])
        for watched in ([listener, self.served], [self.client]):
            poll = stack.enter_context(selectors.EpollSelector())
            for descriptor in watched:
                poll.register(descriptor, selectors.EVENT_READ)

    def is_open(self) -> bool:
        self.client.sendall(b"ping")
        self.served.sendall(b"pong")
        return (self.served.recv(4), self.client.recv(4)) == (b"ping", b"pong")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def store_at(port: int, *, is_master: bool = False) -> dist.TCPStore:  # type: ignore[name-defined] # documented
    return dist.TCPStore("127.0.0.1", port, 2, is_master, LONG, wait_for_workers=False)  # type: ignore[attr-defined] # as above


def test_a_stuck_collective_and_the_store_end_and_a_foreign_connection_stays(stack: ExitStack) -> None:
    port = free_port()
    connections = GlooSockets(port)
    before_store = Foreign(stack)
    store = store_at(port, is_master=True)
    with ThreadPoolExecutor(2) as pool:
        joining = pool.submit(ProcessGroupGloo, store, 0, 2, LONG)
        during_join = pool.submit(Foreign, stack).result()
        peer = ProcessGroupGloo(store_at(port), 1, 2, LONG)
        group = joining.result()
    connections.complete()
    with connections.more():
        in_subgroup = Foreign(stack)
    later = Foreign(stack)
    stuck = group.allreduce([torch.ones(2)])
    threading.Thread(target=connections.call_off).start()
    with pytest.raises(RuntimeError, match=r"(?i)connection|peer"):
        stuck.wait()
    with pytest.raises(RuntimeError):
        store.get("absent")
    assert [connection.is_open() for connection in (before_store, during_join, in_subgroup, later)] == [True] * 4
    del peer


def test_a_join_that_waits_for_a_peer_ends_and_a_foreign_connection_stays(stack: ExitStack) -> None:
    port = free_port()
    store = store_at(port, is_master=True)
    keys = store.num_keys()
    connections = GlooSockets(port)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(lambda: ProcessGroupGloo(store_at(port), 0, 2, LONG))
        foreign = Foreign(stack)
        while store.num_keys() == keys:
            pass  # until this rank has published its address, and waits for that of its peer
        connections.cut()
        with pytest.raises(RuntimeError):
            joining.result(LONG.total_seconds() / 2)
    assert foreign.is_open()


def test_a_wait_that_begins_after_the_call_off_ends_too_and_one_of_the_next_group_does_not() -> None:
    port = free_port()
    hosts = store_at(port, is_master=True)
    connections = GlooSockets(port)
    connections.call_off()
    late = store_at(port)
    with pytest.raises(dist.DistNetworkError):  # a timeout is a DistStoreError
        late.get("a key of a peer that has left")
    connections.end()
    next_group = store_at(port)
    hosts.set("key", b"value")
    assert next_group.get("key") == b"value"
