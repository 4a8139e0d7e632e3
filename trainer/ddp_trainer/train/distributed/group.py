"""The ranks of this generation and what they say to each other.

The process group is built on a store prefix of its own per generation: a rank that comes back must never read an
address that a rank of an earlier generation left (pytorch#135712). A group of one needs no store and no backend.
No pickles cross the network: what is not a tensor travels as bytes.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.config.options import BackendName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.backend import backend_of_group, choose_backend
from ddp_trainer.train.distributed.device_check import demand_one_device
from ddp_trainer.train.distributed.device_errors import limit_exit, may_be_peers, translated
from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from ddp_trainer.train.distributed.group_store import GroupStore
from ddp_trainer.train.distributed.group_teardown import REFORM, EndingGroup, abort_of, call_off, leave_default_group
from ddp_trainer.train.distributed.stream_abort import StreamAbort
from ddp_trainer.train.utils.errors import GpuFailed, PeerLost

if TYPE_CHECKING:
    from ddp_trainer.common.parallel_dims import Layout
    from ddp_trainer.train.distributed.agent_channel import Control

_CHUNK_BYTES: Final = 64 << 20
"""Bytes are broadcast in pieces, so that a large checkpoint needs no second copy on the device."""

_KNOCK_SECONDS: Final = 0.02
"""Between looks whether rank 0 listens already."""

_ASIDE_SECONDS: Final = 0.1
"""Between looks of a spare rank whether the run is over; a signal is heard meanwhile."""

_NETWORK: Final = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused)|broken pipe|socket|timed? ?out|process group", re.IGNORECASE
)
"""gloo reports a lost peer as a bare RuntimeError; inside a pass of DDP only its words tell it from a bug."""

_ADVICE: Final = re.compile(r"\. This (?:is typically|may indicate|typically).*")
"""What gloo adds to every lost connection."""

_SOURCE_LINE: Final = re.compile(r"^(?:\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\]\s*)+")
"""Where in torch's source a message was written; of no use to the reader."""


class Group(EndingGroup):
    """This rank's view of the worker group."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        backend: str,
        device: torch.device,
        connections: GlooSockets | None = None,
        *,
        abort: StreamAbort | None = None,
    ) -> None:
        """``abort``: as :class:`EndingGroup` has it."""
        super().__init__(connections, abort)
        self.rank = rank
        self.world_size = world_size
        self.data_size, self.data_rank = world_size, rank
        """Into how many parts a batch is divided, and which one is this rank's."""
        self.counts = True
        """Of the ranks that share a part, this is the one that speaks for it in sums over ranks."""
        self.backend = backend
        """Of the tensors of its device: ``nccl``, ``gloo``, or ``none`` for a group of one."""
        self.device = device
        self.activity = "while it started"
        """What the ranks are about, for the sentence that tells of a lost peer."""
        self.spares = 0
        """Ranks that have met the others and have no place among them."""

    @classmethod
    def join(
        cls,
        env: Environment,
        device: torch.device,
        timeout_seconds: float,
        asked: BackendName = BackendName.AUTO,
        *,
        control: Control | None = None,
        survives: bool = False,
        offloads: bool = False,
    ) -> Group:
        """Meet the other ranks of this generation; ``control`` may call the meeting off.

        ``survives``: this process is asked to outlive a group of NCCL, too. ``offloads``: as
        :func:`~ddp_trainer.train.distributed.backend.backend_of_group` has it.

        Raises:
            BadConfig: the backend that was asked for is not to be had here, or ranks compute on different devices.
            GroupEnds: it was called off before it began.
            PeerLost: they did not come within the timeout, or the master port cannot be used.
        """
        connections = GlooSockets()
        if env.world_size == 1:
            if control is not None:
                control.entering(connections.call_off)
            return cls(0, 1, "none", device)
        backend = choose_backend(asked, device)
        abort = abort_of(backend, env, device) if survives and control is not None else None
        if control is not None:
            control.entering(lambda: call_off(connections, abort))
        timeout = timedelta(seconds=timeout_seconds)
        where = f"{env.master_address}:{env.master_port}"
        who, failed = f"Rank {env.rank}", f"could not meet its {env.world_size - 1} peers at {where}"
        hosts_store = env.rank == 0 and not env.agent_hosts_store
        if not hosts_store:
            _wait_for_store(env.master_address, env.master_port, timeout_seconds, f"{who} {failed}", control)
        with _translated(who, failed), _or_cut(connections):
            store = dist.TCPStore(  # type: ignore[attr-defined] # documented, but not in __all__
                env.master_address,
                env.master_port,
                env.world_size,
                is_master=hosts_store,
                timeout=timeout,
                wait_for_workers=False,
            )
            backends = backend_of_group(backend, offloads=offloads)
            meeting = GroupStore(store, f"ddp/generation-{env.generation}", backends, timeout)
            demand_one_device(store, meeting.prefix, env.rank, device, backends)
            meeting.begin(env.rank, env.world_size)
        connections.complete()
        group = cls(env.rank, env.world_size, backend, device, connections, abort=abort)
        group._meeting = meeting
        return group

    @classmethod
    def alone(cls) -> Group:
        """A group of one on the CPU, for whoever belongs to none yet."""
        return cls(0, 1, "none", torch.device("cpu"))

    def read(self, tensor: Tensor) -> list[Any]:
        """The numbers of a collective's result.

        Raises:
            PeerLost: the group was broken before they were there.
        """
        with self.watched():
            numbers: list[Any] = tensor.tolist()
        return numbers

    def confirm(self) -> None:
        """Wait until the device has all that collectives give it, where the host does not wait for them by itself.

        Raises:
            PeerLost: the group was broken before.
        """
        if self._abort is not None:
            with self.watched():
                self._abort.settle()

    def narrow(self, world_size: int) -> None:
        """Go on with the first ranks alone, since there is no place for more; every rank must call it."""
        if self._meeting is None or world_size == self.world_size:
            return
        self.spares = self.world_size - world_size
        with self.growing(), self.watched():
            # Nobody leaves while another one still reads what it was sent.
            self._meeting.await_all(self.world_size)
            dist.destroy_process_group()
            self.world_size = self.data_size = world_size
            if world_size == 1:
                self.backend = "none"
            elif not self.is_spare:
                self._meeting.narrowed().begin(self.rank, world_size)

    def stand_aside(self, is_over: Callable[[], bool]) -> bytes:
        """Wait until the others are done, or, by raising, gone; what they leave. For a rank that has no place.

        Raises:
            PeerLost: they are gone, or ``is_over`` says that nobody is waited for any more.
        """
        with self.watched():
            while not is_over():
                if self._meeting is not None and (result := self._meeting.result()) is not None:
                    return result
                time.sleep(_ASIDE_SECONDS)
        raise PeerLost(f"Rank {self.rank} has no place in its group, and waits no more.", hint=REFORM)

    def release(self, result: bytes) -> None:
        """The run is over: let spares end as well; returns when they know. Only rank 0 has something to say."""
        if self.spares and self.rank == 0 and self._meeting is not None:
            with suppress(RuntimeError):
                self._meeting.leave(result, self.spares)

    def lay(self, layout: Layout) -> None:
        """Divide batches as a layout does: ranks of a replica that differ in ``tp`` or ``pp`` alone share a part.

        Of these the first of ``tp`` in the last stage of ``pp``, which has the losses, speaks for them.
        """
        place = layout.place(self.rank)
        self.data_size, self.data_rank = layout.data_size, place.data_rank
        self.counts = place.tp == 0 and place.pp == layout.pp - 1

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Groups of some of these ranks are met inside; whoever waits for a rank there is woken with the others."""
        with self._connections.more() if self._connections is not None else nullcontext():
            yield

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up over ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Elementwise maximum over ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.world_size > 1:
            with self.watched():
                dist.all_reduce(tensor, operation)
        return tensor

    def gather(self, number: int) -> list[int]:
        """The number of every rank, in rank order."""
        numbers = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        return [int(each) for each in self.read(self.sum(numbers))]

    def broadcast(self, payload: bytes | None, source: int) -> bytes:
        """The source rank's bytes, on every rank."""
        if self.world_size == 1:
            return payload or b""
        length = self.gather(len(payload or b""))[source]
        received = payload if self.rank == source and payload is not None else bytearray(length)
        with self.watched():
            for start in range(0, length, _CHUNK_BYTES):
                self._broadcast_piece(received, start, min(start + _CHUNK_BYTES, length), source)
        return bytes(received)

    def _broadcast_piece(self, buffer: bytes | bytearray, start: int, stop: int, source: int) -> None:
        piece = torch.empty(stop - start, dtype=torch.uint8, device=self.device)
        if self.rank == source:
            piece.copy_(torch.frombuffer(bytearray(buffer[start:stop]), dtype=torch.uint8))
        dist.broadcast(piece, source)
        if isinstance(buffer, bytearray):
            buffer[start:stop] = piece.cpu().numpy().tobytes()

    def hand(self, payload: bytes | None, pairs: Sequence[tuple[int, int]]) -> bytes | None:
        """The bytes of the first rank of each pair, on the second one; None on all others. Every rank must call it.

        No rank is in two pairs. Whoever is in none waits too, after each piece: so however long it takes in all, nobody
        waits for longer than a piece takes, and none that waits for its peers gives them up.
        """
        pair = next((pair for pair in pairs if self.rank in pair), None)
        lengths = self.gather(len(payload or b""))
        length = 0 if pair is None else lengths[pair[0]]
        is_source = pair is not None and self.rank == pair[0]
        buffer = payload if is_source and payload is not None else bytearray(length)
        longest = max((lengths[source] for source, _ in pairs), default=0)
        for start in range(0, longest, _CHUNK_BYTES):
            if pair is not None and start < length:
                with self.watched():
                    self._hand_piece(buffer, start, min(start + _CHUNK_BYTES, length), pair)
            self.gather(0)
        return None if pair is None or is_source else bytes(buffer)

    def _hand_piece(self, buffer: bytes | bytearray, start: int, stop: int, pair: tuple[int, int]) -> None:
        source, target = pair
        piece = torch.empty(stop - start, dtype=torch.uint8, device=self.device)
        if self.rank == source:
            piece.copy_(torch.frombuffer(bytearray(buffer[start:stop]), dtype=torch.uint8))
            dist.send(piece, target)
        else:
            dist.recv(piece, source)
        if isinstance(buffer, bytearray):
            buffer[start:stop] = piece.cpu().numpy().tobytes()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run a collective of ours, and translate what fails.

        Raises:
            PeerLost: The network or a peer is the cause.
            GpuFailed: The GPU of this rank failed; CUDA reports it where a result is read.
            BadConfig: NCCL refuses to work as it is configured.
        """
        with _translated(f"Rank {self.rank}", f"lost a peer {self.activity}"):
            yield
        self.demand_whole()

    @contextmanager
    def watched_pass(self) -> Iterator[None]:
        """Run a pass through the model, in which DDP speaks to other ranks; the user's own errors pass through.

        Raises:
            PeerLost, GpuFailed, BadConfig: As :meth:`watched`.
        """
        who = f"Rank {self.rank}"
        try:
            yield
        except RuntimeError as err:
            _raise_translated(err, who)
            if self.world_size > 1 and is_network(err):
                raise _lost(f"{who} lost a peer {self.activity}", err) from err
            raise

    def close(self) -> None:
        """Leave in good order; every rank is expected to."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Leave without the others, whatever is under way; peers that wait for this rank notice at once."""
        if self._connections is not None:
            self._connections.cut()
        self._meeting = None
        leave_default_group()


def is_network(err: RuntimeError) -> bool:
    """Whether a collective, and not the user's code, raised this."""
    if not may_be_peers(err):
        return False
    if isinstance(err, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError):
        return True
    return type(err) is RuntimeError and _NETWORK.search(str(err)) is not None


def _wait_for_store(host: str, port: int, timeout_seconds: float, what: str, control: Control | None) -> None:
    """Return once somebody listens there: sooner than torch, which waits longer between tries, and quietly."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError as err:
            if time.monotonic() >= deadline or (control is not None and control.is_called_off):
                raise PeerLost(f"{what}: {err.strerror or err}.", hint=REFORM) from None
            time.sleep(_KNOCK_SECONDS)
        else:
            return


@contextmanager
def _or_cut(connections: GlooSockets) -> Iterator[None]:
    """A group that could not be met is left by no one else."""
    try:
        yield
    except BaseException:
        connections.cut()
        raise


@contextmanager
def _translated(who: str, failed: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as err:
        _raise_translated(err, who)
        if may_be_peers(err):
            raise _lost(f"{who} {failed}", err) from err
        raise


def _raise_translated(err: RuntimeError, who: str) -> None:
    error = translated(err, who)
    if isinstance(error, GpuFailed):
        limit_exit(error)
    if error is not None:
        raise error from err


def _lost(what: str, err: RuntimeError) -> PeerLost:
    return PeerLost(f"{what}: {reason(str(err))}.", hint=REFORM)


def reason(text: str) -> str:
    """The one sentence of torch's message that says what happened.

    >>> reason("[/src/gloo/pair.cc:537] Read error [10.0.0.7]:4242: Connection reset by peer. This is typically ...")
    'Read error [10.0.0.7]:4242: Connection reset by peer'
    """
    first = (text.strip().splitlines() or ["no reason was given"])[0]
    return _ADVICE.sub("", _SOURCE_LINE.sub("", first)).rstrip(". ")
