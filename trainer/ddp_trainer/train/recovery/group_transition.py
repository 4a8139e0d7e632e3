"""Transition of a surviving worker from one worker group to the next, in the same process.

:class:`GroupTransition` leaves the old group, waits for the agent's next rendezvous, and joins the new group. The
process drops everything that belongs to the group and keeps its training state. A process ends with its group if it has
no channel to the launcher, or if the kind of run does not support the transition. The launcher then starts a new
process. It talks to the agent through :mod:`ddp_trainer.train.distributed.agent_channel`.

Spare ranks, for which the layout has no place, wait (:func:`await_end`), and replace a member that is lost in the next
group.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.common.time_classes import Section, StartupPhase
from ddp_trainer.process import startup_times
from ddp_trainer.train.checkpoint.summary import Outcome, Summary
from ddp_trainer.train.config.config import Config, layout_of
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.device_selection import choose_device
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.group_teardown import destroy_default_group
from ddp_trainer.train.distributed.stop_signals import StopRequest
from ddp_trainer.train.loop.run_context import ProcessContext
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost


def needs_more_ranks(parallel: LayoutRange | None, world: int, max_ranks: int | None) -> bool:
    """Return True if there are too few ranks for any layout, but more ranks can still join.

    Args:
        parallel: The range of layouts; None for plain data parallelism.
        world: Number of ranks now.
        max_ranks: Maximum number of ranks of the job; None if unknown.

    >>> layouts = LayoutRange.parse("replicate=1:2,shard=2")
    >>> [needs_more_ranks(layouts, world, 4) for world in (1, 2, 3)], needs_more_ranks(layouts, 1, None)
    ([True, False, False], False)
    """
    return parallel is not None and world < parallel.smallest.world <= (max_ranks or 0)


def select_active_ranks(parallel: LayoutRange, group: Group, note: Callable[[str], None]) -> None:
    """Reduce the group to the first ranks, as many as the layout has places; every rank must call it.

    Raises:
        BadConfig: There are too few ranks for any layout.
        PeerLost: A rank was lost.
    """
    world, layout = group.world_size, layout_of(parallel, group.world_size)
    if layout.world < world:
        note(f"--parallel {parallel} has a place for {layout.world} of the {world} ranks: the last ones are spare.")
    group.narrow(layout.world)


def await_end(around: ProcessContext, timer: StepTimer) -> Outcome:
    """Wait as a spare until the run ends, and return its outcome.

    Raises:
        PeerLost: The other ranks were lost.
        GroupEnded: A new group is formed, or this process received a stop request.
    """
    control, stop = around.control, around.stop
    timer.enter(Section.ASIDE)

    def is_over() -> bool:
        return stop.exit_code is not None or (control is not None and control.is_called_off)

    try:
        summary = Summary.from_dict(json.loads(around.group.wait_as_spare(is_over)))
    except PeerLost as err:
        if is_over():
            raise GroupEnded(err.message) from err
        raise
    return Outcome(summary, Exit.SUCCESS)


class GroupTransition:
    """Membership of one process in successive worker groups."""

    def __init__(self, config: Config, control: Control | None, stop: StopRequest, *, can_stay: bool) -> None:
        """Register with the agent as a process that can outlive its group.

        Args:
            config: The configuration.
            control: The channel to the launcher; None without a launcher.
            stop: The stop requests of this process.
            can_stay: This process can join another group with its state.
        """
        self._config = config
        self._control = control
        self._stop = stop
        self._group: Group | None = None
        self._can_stay = can_stay
        self._is_able = True
        if control is not None:
            stop.on_stop = control.end
            control.set_reusable()
            if config.parallel is not None:
                control.report_layouts(config.parallel)

    @property
    def is_open(self) -> bool:
        """True if this process can join a next group after the current one."""
        may_stay = self._group is None or self._group.can_survive_group_end
        return self._control is not None and self._can_stay and may_stay

    def first(self, env: Environment) -> Environment | None:
        """Return the environment of the first group; a standby process waits for it.

        Returns:
            The environment; None if a standby process receives a stop request.
        """
        startup_times.end_phase(StartupPhase.IMPORTS)
        if self._control is None or not self._control.stands_by:
            return env
        self._control.report_standby()
        return self._control.next_place(lambda: self._stop.exit_code is not None)

    def join(self, env: Environment) -> Group:
        """Join the worker group of this environment; see :meth:`Group.join`.

        Raises:
            GroupEnded: The launcher canceled the group before it was complete.
            PeerLost: A rank was lost.
        """
        self._group = None
        config, control = self._config, self._control
        device = choose_device(config.device, env)
        try:
            self._group = Group.join(
                env,
                device,
                config.timeout_seconds,
                config.backend,
                control=control,
                survives=config.survive_on_nccl,
                offloads=config.fsdp_offload,
            )
        except PeerLost as err:
            if control is not None and control.is_called_off:
                raise GroupEnded("The meeting of the ranks was called off.") from err
            raise
        startup_times.end_phase(StartupPhase.RENDEZVOUS)
        self._set_reusable(able=self._group.can_survive_group_end)
        return self._group

    def free_device(self, ended: PeerLost) -> None:
        """Stop pending work on the device; must be called before any state of the ended group is touched."""
        if self._group is not None:
            self._group.free_device(agreed=isinstance(ended, GroupEnded))

    def next(self, ended: PeerLost) -> Environment | None:
        """Leave the ended group and wait for the next; nothing of the old group may be in use.

        Returns:
            The environment of the next group; None after a stop request.
        """
        assert self._control is not None  # noqa: S101 - only called if is_open
        if self._group is None:
            destroy_default_group()
        else:
            self._group.abort()
        self._control.report_group_exit(ended)
        return self._control.next_place(lambda: self._stop.exit_code is not None)

    def close(self) -> None:
        """Report to the agent that this process now ends with its group."""
        self._set_reusable(able=False)

    def _set_reusable(self, *, able: bool) -> None:
        """Report a change to the agent, which sends SIGTERM to workers that cannot leave their group alive."""
        if self._control is not None and able is not self._is_able:
            self._is_able = able
            self._control.set_reusable(able=able)
