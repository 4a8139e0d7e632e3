"""Simulated agents: one process with many connections to a real store, which speaks the protocol without workers."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_trainer.launch.protocol.generation import Node
from ddp_trainer.launch.protocol.messages import KEY_PURPOSE, VERSION, Hello, Join, Ping, Policy, WorkerState, encode
from ddp_trainer.net.handshake import ClientHandshake
from ddp_trainer.net.run_secret import RunSecret

RANKS_PER_AGENT: Final = 8
AT_ONCE: Final = 128
"""Connections that are opened at a time; pods of a job come one by one, too."""
PING_SECONDS: Final = 1.0
"""As :data:`ddp_trainer.launch.protocol.timeouts.HEARTBEAT`."""


@dataclass(slots=True)
class AgentPool:
    """All simulated agents of one run."""

    secret: RunSecret
    policy: Policy
    agents: list[SimulatedAgent] = field(default_factory=list)
    handshake_seconds: list[float] = field(default_factory=list)
    joined_at: float = 0.0
    """Time at which the last Join was sent, by ``time.perf_counter``."""
    _started: int = 0
    _wanted: int = 0
    _all_started: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self, port: int, count: int, *, first: int = 0) -> None:
        """Connect agents, which authenticate and send Hello; ``first`` is the index of the first of them."""
        gate = asyncio.Semaphore(AT_ONCE)
        loop = asyncio.get_running_loop()

        async def one(index: int) -> None:
            async with gate:
                _, agent = await loop.create_connection(lambda: SimulatedAgent(self, index), "127.0.0.1", port)
                self.agents.append(agent)  # from here on it pings
                await agent.is_ready

        await asyncio.gather(*map(one, range(first, first + count)))

    async def group(self, count: int, *, join: bool) -> None:
        """Wait until ``count`` agents have received the same Start; with ``join``, let all join first."""
        self._started, self._wanted = 0, count
        self._all_started.clear()
        for agent in self.agents:
            agent.received = 0
            if join:
                agent.join()
        await self._all_started.wait()
        digests = {agent.assignment["digest"] for agent in self.agents if agent.assignment}
        ranks = {agent.assignment["node_rank"] for agent in self.agents if agent.assignment}
        assert len(digests) == 1, digests
        assert ranks == set(range(count)), "ranks are not 0 to the number of agents"

    def drop_agents(self, count: int) -> float:
        """Break the connections of the first ``count`` agents; return when."""
        lost, self.agents = self.agents[:count], self.agents[count:]
        for agent in lost:
            agent.abort()
        return time.perf_counter()

    def started(self) -> None:
        """One more agent has received Start."""
        self._started += 1
        if self._started == self._wanted:
            self._all_started.set()

    async def ping(self) -> None:
        """Keep all connections alive, until cancelled."""
        ping = encode(Ping())
        for turn in itertools.cycle(range(10)):
            for agent in self.agents[turn::10]:
                if agent.is_ready.done():
                    agent.write(ping)
            await asyncio.sleep(PING_SECONDS / 10)


class SimulatedAgent(asyncio.Protocol):
    """One simulated agent. It starts immediately, and rejoins immediately after a stop request."""

    def __init__(self, crowd: AgentPool, index: int) -> None:
        self.received = 0
        """Bytes received since the last request for a group."""
        self.assignment: dict[str, Any] = {}
        self.is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crowd = crowd
        self._index = index
        self._handshake: ClientHandshake | None = ClientHandshake(crowd.secret.key(KEY_PURPOSE), VERSION)
        self._transport: asyncio.Transport | None = None
        self._begun = 0.0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Knock."""
        assert isinstance(transport, asyncio.Transport)
        assert self._handshake
        self._transport = transport
        self._begun = time.perf_counter()
        transport.write(self._handshake.first_message)

    def data_received(self, data: bytes) -> None:
        """Answer as an agent does."""
        self.received += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._handshake:
                self._on_authenticated(self._handshake.respond(line + b"\n"))
            elif b'"ping"' not in line[:16]:
                self._on_message(json.loads(line))

    def _on_authenticated(self, proof: bytes) -> None:
        self._crowd.handshake_seconds.append(time.perf_counter() - self._begun)
        self._handshake = None
        node = Node(
            token=f"token-{self._index}",
            name=f"worker-{self._index}",
            index=self._index,
            local_world_size=RANKS_PER_AGENT,
            address=f"10.{self._index >> 16}.{self._index >> 8 & 255}.{self._index & 255}",
        )
        hello = Hello(
            version=VERSION,
            run_id="bench",
            node=node,
            policy=self._crowd.policy,
            standing=WorkerState.IDLE,
            clock=time.time(),
        )
        self.write(proof + encode(hello))
        self.is_ready.set_result(None)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["is"] == "start":
            self.assignment = message["assignment"]
            self._crowd.started()
        elif message["is"] == "stop":
            self.join()

    def join(self) -> None:
        """No worker runs; ready for the next group."""
        self.assignment = {}
        self.write(encode(Join(port=29500)))
        self._crowd.joined_at = time.perf_counter()

    def write(self, line: bytes) -> None:
        """Send a line."""
        if self._transport:
            self._transport.write(line)

    def abort(self) -> None:
        """Break the connection."""
        if self._transport:
            self._transport.abort()
