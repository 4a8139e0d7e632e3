"""Worker group of one generation: :class:`Group` joins it, runs its collectives and leaves it.

Each generation uses its own prefix in the store, so that a returning rank never reads an address from an earlier
generation (pytorch#135712). A group of one needs no store and no backend. Data other than tensors is sent as bytes,
never as pickles.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.config.option_values import BackendName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed import group_teardown
from ddp_trainer.train.distributed.collective_errors import can_be_peer_loss, is_network, raise_converted
from ddp_trainer.train.distributed.device_selection import backend_of_group, choose_backend, require_same_device
from ddp_trainer.train.distributed.gloo_sockets import GlooSockets
from ddp_trainer.train.distributed.group_store import GroupStore
from ddp_trainer.train.distributed.stream_abort import StreamAbort
from ddp_trainer.train.utils.errors import PeerLost

if TYPE_CHECKING:
    from ddp_trainer.common.parallel_dims import Layout
    from ddp_trainer.train.distributed.agent_channel import Control

_KNOCK_SECONDS: Final = 0.02
"""Interval between checks whether rank 0 listens."""

_ASIDE_SECONDS: Final = 0.1
"""Interval at which a spare rank checks whether the run is over. Signals are handled in between."""


class Group(group_teardown.GroupTeardown):
    """The worker group as seen from one rank: its size, its collectives and its end."""

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
        """See :class:`.GroupTeardown` for ``connections`` and ``abort``."""
        super().__init__(connections, abort)
        self.rank = rank
        self.world_size = world_size
        self.data_size, self.data_rank = world_size, rank
        """Number of parts of a batch, and the part of this rank."""
        self.counts = True
        """True on one of the ranks that share a part of the batch: only that rank contributes to sums over ranks."""
        self.backend = backend
        """Backend for tensors on :attr:`device`: ``nccl``, ``gloo`` or ``mpi``, or ``none`` for a group of one."""
        self.device = device
        self.activity = "while it started"
        """Current activity of the ranks, as used in the message about a lost peer."""
        self.has_agreed_state = False
        """True on all ranks if they hold the same weights and buffers, so that no strategy needs to send them."""
        self.spares = 0
        """Number of spare ranks, which joined the group and have no place in the layout."""

    @classmethod
    def join(
        cls,
        env: Environment,
        device: torch.device,
        timeout_seconds: float,
        requested: BackendName = BackendName.AUTO,
        *,
        control: Control | None = None,
        survives: bool = False,
        offloads: bool = False,
    ) -> Group:
        """Join the other ranks of this generation.

        Args:
            env: Place of this process.
            device: Device of this rank.
            timeout_seconds: Timeout of the join and of later collectives.
            requested: Backend of ``--backend``.
            control: Channel to the agent, which can cancel the join.
            survives: True if this process keeps running when an NCCL group ends.
            offloads: See :func:`~ddp_trainer.train.distributed.device_selection.backend_of_group`.

        Raises:
            BadConfig: The backend is not available, or the ranks use different kinds of devices or backends.
            GroupEnded: The join was canceled before it started.
            PeerLost: The other ranks did not join within the timeout, or the master port cannot be used.
        """
        if env.world_size == 1:
            if control is not None:
                control.mark_joining(lambda: None)  # it waits for nobody
            return cls(0, 1, "none", device)
        connections = GlooSockets(env.master_port)
        backend = choose_backend(requested, device)
        abort = group_teardown.abort_of(backend, env, device) if survives and control is not None else None
        if control is not None:
            control.mark_joining(lambda: group_teardown.call_off(connections, abort))
        timeout = timedelta(seconds=timeout_seconds)
        where = f"{env.master_address}:{env.master_port}"
        who, failed = f"Rank {env.rank}", f"could not meet its {env.world_size - 1} peers at {where}"
        hosts_store = env.rank == 0 and not env.agent_hosts_store
        try:
            if not hosts_store:
                _wait_for_store(env.master_address, env.master_port, timeout_seconds, f"{who} {failed}", control)
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
            require_same_device(store, meeting.prefix, env.rank, device, backends)
            meeting.begin(env.rank, env.world_size)
        except BaseException as err:
            connections.end()  # no other code leaves this group
            if isinstance(err, RuntimeError):
                raise_converted(err, who, failed, is_loss=can_be_peer_loss(err))
            raise
        connections.complete()
        group = cls(env.rank, env.world_size, backend, device, connections, abort=abort)
        group._meeting = meeting
        return group

    @classmethod
    def single_rank(cls) -> Group:
        """Return a group of one rank on the CPU, for a process that has not joined a group."""
        return cls(0, 1, "none", torch.device("cpu"))

    def read(self, tensor: Tensor) -> list[Any]:
        """Return the values of a collective's result as (nested) lists.

        Args:
            tensor: Result of a collective, of any shape and dtype.

        Raises:
            PeerLost: The group broke before the result was complete.
        """
        with self.convert_errors():
            numbers: list[Any] = tensor.tolist()
        return numbers

    def read_sum(self, tensor: Tensor) -> list[Any]:
        """Sum a tensor over ranks, and return the values as :meth:`read` does; for the tensor see :meth:`sum`."""
        return self.read(self.sum(tensor))

    def confirm(self) -> None:
        """Wait until the collectives on the device are complete. Has no effect where the host waits for each of them.

        Raises:
            PeerLost: The group broke before.
        """
        if self._abort is not None:
            with self.convert_errors():
                self._abort.synchronize()

    def narrow(self, world_size: int) -> None:
        """Re-form the group from its first ``world_size`` ranks; the others become spare. Every rank must call this."""
        if self._meeting is None or world_size == self.world_size:
            return
        self.spares = self.world_size - world_size
        with self.track_subgroups(), self.convert_errors():
            # No rank may leave while another one still receives data from it.
            self._meeting.await_all(self.world_size)
            dist.destroy_process_group()
            self.world_size = self.data_size = world_size
            if world_size == 1:
                self.backend = "none"
            elif not self.is_spare:
                self._meeting.subgroup_store().begin(self.rank, world_size)

    def wait_as_spare(self, is_over: Callable[[], bool]) -> bytes:
        """Wait as a spare rank until the run ends.

        Args:
            is_over: Stops the wait when it returns True.

        Returns:
            The result that rank 0 passed to :meth:`release`.

        Raises:
            PeerLost: The other ranks are lost, or ``is_over`` returned True.
        """
        with self.convert_errors():
            while not is_over():
                if self._meeting is not None and (result := self._meeting.result()) is not None:
                    return result
                time.sleep(_ASIDE_SECONDS)
        raise PeerLost(
            f"Rank {self.rank} has no place in its group, and has stopped waiting.", hint=group_teardown.REFORM
        )

    def release(self, result: bytes) -> None:
        """Send the result of the finished run to the spare ranks, so that they end.

        Return when all of them have read it, at the latest after the timeout of the group. Only rank 0 sends.
        """
        if self.spares and self.rank == 0 and self._meeting is not None:
            with suppress(RuntimeError):
                self._meeting.publish_result(result, self.spares)

    def set_layout(self, layout: Layout) -> None:
        """Divide batches by a layout. Of the ranks that share a part, the one that has the losses counts."""
        place = layout.place(self.rank)
        self.data_size, self.data_rank = layout.data_size, place.data_rank
        self.counts = place.has_losses

    @contextmanager
    def track_subgroups(self) -> Iterator[None]:
        """Context for creating subgroups: when the group is cut, waits in the subgroups fail too."""
        with self._connections.more() if self._connections is not None else nullcontext():
            yield

    def clear_reduced_mark(self) -> None:
        """Clear the mark of :meth:`mark_reduced` at the start of a step."""
        if self._abort is not None:
            self._abort.clear_mark()

    def mark_reduced(self) -> None:
        """Mark that all collectives of this step except its vote have started, for :attr:`is_reduction_complete`."""
        if self._abort is not None:
            self._abort.mark()

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over ranks, in place, and return it.

        Args:
            tensor: Tensor of any shape on the device of this rank. Shape and dtype are the same on all ranks.
        """
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Take the elementwise maximum of a tensor over ranks, in place, and return it.

        Args:
            tensor: Tensor of any shape on the device of this rank. Shape and dtype are the same on all ranks.
        """
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.world_size > 1:
            with self.convert_errors():
                dist.all_reduce(tensor, operation)
        return tensor

    def gather(self, number: int) -> list[int]:
        """Return the integers of all ranks, in rank order."""
        numbers = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        return [int(value) for value in self.read_sum(numbers)]

    def broadcast(self, payload: bytes | None, source: int) -> bytes:
        """Return the bytes of rank ``source`` on every rank; states go by :mod:`.checkpoint.state_transfer`."""
        if self.world_size == 1:
            return payload or b""
        length = self.gather(len(payload or b""))[source]
        packed = torch.empty(length, dtype=torch.uint8, device=self.device)
        if self.rank == source and payload:
            packed.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        if length:
            with self.convert_errors():
                dist.broadcast(packed, source)
        return payload if self.rank == source and payload is not None else packed.cpu().numpy().tobytes()

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        """Context for collectives of the trainer, which translates their errors.

        Raises:
            PeerLost: The network failed or a peer is lost.
            GpuFailed: The GPU of this rank failed; CUDA reports it where a result is read.
            BadConfig: NCCL rejects its configuration.
        """
        try:
            yield
        except RuntimeError as err:
            self._raise_converted(err, is_loss=can_be_peer_loss(err))
        if self._abort is not None:
            self.check_not_aborted()

    @contextmanager
    def convert_pass_errors(self) -> Iterator[None]:
        """Context for a pass through the model with collectives of DDP. Errors of user code pass through unchanged.

        Raises:
            PeerLost, GpuFailed, BadConfig: As :meth:`convert_errors`.
        """
        try:
            yield
        except RuntimeError as err:
            self.raise_pass_error(err)

    def raise_pass_error(self, err: RuntimeError) -> NoReturn:
        """Raise an error of a pass through the model as :meth:`convert_pass_errors` does."""
        self._raise_converted(err, is_loss=self.world_size > 1 and is_network(err))

    def _raise_converted(self, err: RuntimeError, *, is_loss: bool) -> NoReturn:
        raise_converted(err, f"Rank {self.rank}", f"lost a peer {self.activity}", is_loss=is_loss)

    def close(self) -> None:
        """Leave the group in order, together with all other ranks."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def abort(self) -> None:
        """Leave the group immediately, also during a collective. The waits of peers for this rank fail."""
        if self._connections is not None:
            self._connections.cut()
        self._meeting = None
        group_teardown.destroy_default_group()


def _wait_for_store(host: str, port: int, timeout_seconds: float, what: str, control: Control | None) -> None:
    """Wait until the store accepts connections. torch would retry less often, and print warnings."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError as err:
            if time.monotonic() >= deadline or (control is not None and control.is_called_off):
                raise PeerLost(f"{what}: {err.strerror or err}.", hint=group_teardown.REFORM) from None
            time.sleep(_KNOCK_SECONDS)
        else:
            return
