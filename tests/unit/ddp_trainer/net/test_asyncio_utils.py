"""Event loops that close: no message about a late signal or a broken connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ddp_trainer.net import asyncio_utils
from tests.support.programs import captured

PROGRAM = """
import asyncio, os, signal, sys
from ddp_trainer.net import asyncio_utils as event_loop

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, print)
    close = loop._close_self_pipe

    def close_and_signal():
        close()
        os.kill(os.getpid(), signal.SIGCHLD)

    loop._close_self_pipe = close_and_signal
    return 3

sys.exit({run}(main()))
"""


@pytest.mark.parametrize(("run", "is_silent"), [("event_loop.run", True), ("asyncio.run", False)])
def test_a_signal_that_comes_while_the_loop_closes_is_not_reported(run: str, is_silent: bool) -> None:
    program = PROGRAM.replace("{run}", run)
    done = captured([sys.executable, "-c", program])
    assert done.returncode == 3
    assert (done.stderr == "") is is_silent, done.stderr


def test_what_is_run_gets_its_signals_and_its_errors_out() -> None:
    async def main() -> Any:
        loop, received = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, received.set)
        os.kill(os.getpid(), signal.SIGUSR2)
        await received.wait()
        raise LookupError("done")

    with pytest.raises(LookupError, match="done"):
        asyncio_utils.run(main())


RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(("close", "is_silent"), [(asyncio_utils.hang_up, True), (_close, False)])
def test_a_connection_that_broke_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, close: Callable[[asyncio.StreamWriter], Awaitable[None]], *, is_silent: bool
) -> None:
    # What is collected together is finalized in any order: here as if the protocol came last, which hides it else.
    monkeypatch.delattr(asyncio.StreamReaderProtocol, "__del__")
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            await close(writer)
            over.set()

        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                await asyncio.sleep(0)
            await over.wait()
        gc.collect()

    asyncio.run(main())
    gc.collect()
    assert (complaints == []) is is_silent
