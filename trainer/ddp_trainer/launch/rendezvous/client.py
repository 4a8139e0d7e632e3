"""Agent's connection to the store: one authenticated TCP connection that reconnects after every break.

:class:`TcpLink` passes the store's messages to a :class:`~ddp_trainer.launch.rendezvous.transport.LinkCallbacks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from asyncio import staggered
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ddp_trainer.common.constants import OutsideReason
from ddp_trainer.launch.host.endpoint import Endpoint
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.timeouts import HEARTBEAT, HeartbeatTimeouts
from ddp_trainer.launch.rendezvous import waiting_messages
from ddp_trainer.launch.rendezvous.transport import LinkCallbacks
from ddp_trainer.net.asyncio_utils import hang_up, tune
from ddp_trainer.net.handshake import HandshakeError, WrongSecret, authenticate
from ddp_trainer.net.run_secret import RunSecret

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CONNECT_SECONDS: Final = 3.0
_HANDSHAKE_SECONDS: Final = 2.0
"""Limit for the handshake. An unrelated server may stay silent. Then the name is resolved again, and may lead to the
store."""
_NEXT_ADDRESS_SECONDS: Final = 0.25
"""Delay after which the next address of the name is also tried."""
_BACKOFF: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Pauses between attempts, in seconds. The last one repeats. The first attempts are within the store's
``Timeouts.reconnect``."""


class NameResolutionError(Exception):
    """The name of the store has no address; the message ends a sentence."""


class TcpLink:
    """TCP implementation of :class:`~ddp_trainer.launch.rendezvous.transport.Link`.

    Each attempt resolves the name again, because a store that moved has a new address.
    """

    def __init__(
        self, endpoint: Endpoint, secret: RunSecret, *, source: str = "", heartbeat: HeartbeatTimeouts = HEARTBEAT
    ) -> None:
        """Create a link that is not connected.

        Args:
            endpoint: Host and port of the store.
            secret: Secret of the run.
            source: Address to connect from; any if empty.
            heartbeat: Interval and timeout of the heartbeat.
        """
        self._endpoint = endpoint
        self._key = secret.key(messages.KEY_PURPOSE)
        self._source = source
        self._heartbeat = heartbeat
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._lookup: asyncio.Task[Any] | None = None
        """Lookup of the store's name that is under way."""
        self._is_refused = False

    def start(self, listener: LinkCallbacks) -> None:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Link`."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(listener))
        self._task.add_done_callback(_raise_error)

    def send(self, message: messages.FromAgent) -> None:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Link`."""
        if self._writer:
            self._writer.write(_line(message))

    async def close(self) -> None:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Link`."""
        writer = self._writer
        if writer:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), self._heartbeat.timeout)
        if self._lookup:
            self._lookup.cancel()
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _keep_connected(self, listener: LinkCallbacks) -> None:
        tries = 0
        while not self._is_refused:
            try:
                reader, writer = await self._connect()
            except WrongSecret:
                listener.link_failed(waiting_messages.WRONG_SECRET, OutsideReason.SECRET)
            except HandshakeError as error:
                listener.link_failed(f"the server there is not a store of this run: {error}", OutsideReason.HANDSHAKE)
            except NameResolutionError as error:
                listener.link_failed(str(error), OutsideReason.NAME_RESOLUTION)
            except OSError as error:
                listener.link_failed(connection_error_message(error), OutsideReason.CONNECTION)
            else:
                connected_at = asyncio.get_running_loop().time()
                try:
                    await self._exchange_messages(reader, writer, listener)
                finally:
                    self._writer = None
                    await hang_up(writer)
                    listener.link_down()
                    if asyncio.get_running_loop().time() > connected_at + 1:
                        tries = 0  # not a store that closes new connections
            pause = _BACKOFF[min(tries, len(_BACKOFF) - 1)]
            tries += 1
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - spreads the attempts of many agents

    async def _connect(self) -> _Streams:
        """Return a connection to the first address of the name that proves to hold the secret.

        The name may also lead to a lost store, which does not answer, and to pods that only have the store's labels.
        Therefore the next address is tried when one has failed or is slow.

        Raises:
            NameResolutionError: If the name has no address.
            HandshakeError: If servers answer, but none belongs to this run.
            OSError: If no server answers.
        """
        found = await self._resolve()
        tries = [partial(self._connect_and_authenticate, family, address) for family, _, _, _, address in found]
        streams: _Streams | None
        streams, _, errors = await staggered.staggered_race(tries, _NEXT_ADDRESS_SECONDS)
        if streams is None:
            raise _most_specific_error([error for error in errors if error])
        return streams

    async def _resolve(self) -> list[Any]:
        """Return the addresses of the store's name.

        A slow lookup is continued by the next attempt: where a resolver first tries a name server that is gone, every
        lookup takes 5 s.

        Raises:
            NameResolutionError: If the name has no address, or no name server answers in time.
        """
        loop, (host, port) = asyncio.get_running_loop(), (self._endpoint.host, self._endpoint.port)
        self._lookup = self._lookup or loop.create_task(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        done, _ = await asyncio.wait({self._lookup}, timeout=_CONNECT_SECONDS)
        if not done:
            why = f"no name server answers within {_CONNECT_SECONDS:g} s"
            raise NameResolutionError(f"its name does not resolve: {why}")
        lookup, self._lookup = self._lookup, None
        try:
            found: list[Any] = lookup.result()
        except OSError as error:
            raise NameResolutionError(f"its name does not resolve ({error.strerror or error})") from None
        return found

    async def _connect_and_authenticate(self, family: int, address: Any) -> _Streams:
        """Connect to one address and authenticate.

        Raises:
            HandshakeError: If the server fails the handshake, or does not complete it in time.
            OSError: If no connection is possible.
            TimeoutError: If the server does not accept the connection in time.
        """
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await self._open(family, address)
        try:
            await authenticate(reader, writer, self._key, messages.VERSION, _HANDSHAKE_SECONDS)
        except TimeoutError:
            await hang_up(writer)
            raise HandshakeError(f"it does not answer the handshake within {_HANDSHAKE_SECONDS:g} s") from None
        except BaseException:
            await hang_up(writer)
            raise
        return reader, writer

    async def _open(self, family: int, address: Any) -> _Streams:
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setblocking(False)
            if self._source:
                opened.bind((self._source, 0))
            await asyncio.get_running_loop().sock_connect(opened, address)
            tune(opened, self._heartbeat.timeout)
            streams: _Streams = await asyncio.open_connection(sock=opened, limit=messages.LINE_BYTES)
        except BaseException:
            opened.close()
            raise
        return streams

    async def _exchange_messages(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: LinkCallbacks
    ) -> None:
        """Exchange messages until the connection breaks or the store falls silent. Raise the listener's errors."""
        for message in listener.initial_messages(str(writer.get_extra_info("sockname")[0])):
            writer.write(_line(message))
        self._writer = writer
        beating = asyncio.get_running_loop().create_task(self._send_heartbeats(writer))
        try:
            while received := await self._next_message(reader, listener):
                # Another attempt would look like a newer pod of this name, and would replace the successor of this pod.
                self._is_refused = isinstance(received, messages.Rejected)
                listener.on_message(received)  # type: ignore[arg-type] # the listener ignores messages that a store never sends
        finally:
            beating.cancel()

    async def _next_message(self, reader: asyncio.StreamReader, listener: LinkCallbacks) -> messages.Message | None:
        """Return the next message of the store; None if there is none, after the listener has received the reason."""
        try:
            async with asyncio.timeout(self._heartbeat.timeout):
                line = await reader.readline()
            return messages.decode(line) if line else None
        except TimeoutError:
            listener.link_failed("the store no longer answers", OutsideReason.CONNECTION)
        except OSError:
            pass  # the store closed the connection and may be back soon
        except (messages.ProtocolError, ValueError):
            # The store may take the port over later.
            listener.link_failed("the server there is not a store; choose another port", OutsideReason.HANDSHAKE)
        return None

    async def _send_heartbeats(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(self._heartbeat.interval)
            writer.write(messages.encode(messages.Ping()))


def _raise_error(task: asyncio.Task[None]) -> None:
    """Raise the error that has ended a task, which the event loop passes to its handler."""
    if not task.cancelled():
        task.result()


def _most_specific_error(errors: list[Exception]) -> Exception:
    """Return the error that best explains why no address is the store's."""
    kinds = (WrongSecret, HandshakeError)
    return next((error for kind in kinds for error in errors if isinstance(error, kind)), errors[0])


def _line(message: messages.FromAgent) -> bytes:
    """Encode a message within the store's line limit. Looks that are too long lose their stacks."""
    line = messages.encode(message)
    if len(line) > messages.LINE_BYTES and isinstance(message, messages.RankStates):
        bare = tuple(replace(status, stack="", collectives=()) for status in message.ranks)
        line = messages.encode(replace(message, ranks=bare))
    return line


def connection_error_message(error: OSError) -> str:
    """Return the reason for a failed connection, as the end of a sentence.

    >>> connection_error_message(ConnectionRefusedError(111, "Connect call failed ('10.0.0.7', 29400)"))
    'connection refused'
    """
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return f"its name resolves, and the connection is not accepted within {_CONNECT_SECONDS:g} s"
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):  # one for each address
        return "connection refused"
    return error.strerror or str(error)
