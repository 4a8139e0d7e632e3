"""How a process gets from one worker group to the next without ending.

Everything that belongs to the group goes, what it has learned stays. Where there is no channel to a launcher, or the
run is of a kind that cannot, a process belongs to one group and ends with it, and the launcher starts another.
"""

from __future__ import annotations

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.device_selection import choose_device
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.group_teardown import leave_default_group
from ddp_trainer.train.distributed.stop_signals import StopRequest
from ddp_trainer.train.utils.errors import GroupEnds, PeerLost


class GroupTransition:
    """The way of one process from group to group."""

    def __init__(self, config: Config, control: Control | None, stop: StopRequest, *, can_stay: bool) -> None:
        """``can_stay``: this process is of use after its group has ended."""
        self._config = config
        self._control = control
        self._stop = stop
        self._group: Group | None = None
        self._can_stay = can_stay
        self._is_able = True
        if control is not None:
            stop.heard = control.end
            control.able()
            if config.parallel is not None:
                control.laid(config.parallel)

    @property
    def is_open(self) -> bool:
        """Whether there is a next group for this process, once the present one has ended."""
        may_stay = self._group is None or self._group.may_be_outlived
        return self._control is not None and self._can_stay and may_stay

    def first(self, env: Environment) -> Environment | None:
        """The place that this process was started for; one that got ready before waits for it, None if in vain."""
        if self._control is None or not self._control.stands_by:
            return env
        self._control.stand_by()
        return self._wait(self._control)

    def join(self, env: Environment) -> Group:
        """Meet the other ranks; see :meth:`Group.join`. Raises GroupEnds, too, where the meeting was called off."""
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
                raise GroupEnds("The meeting of the ranks was called off.") from err
            raise
        self._set_able(able=self._group.may_be_outlived)
        return self._group

    def free_device(self, ended: PeerLost) -> None:
        """Before anything of the group that has ended is touched: its state, its gradients, what is on the device."""
        if self._group is not None:
            self._group.free_device(agreed=isinstance(ended, GroupEnds))

    def next(self, ended: PeerLost) -> Environment | None:
        """Leave the group, of which nothing is in use any more, and wait for the next; None when told to stop."""
        assert self._control is not None  # noqa: S101 - asked only where the passage is open
        if self._group is None:
            leave_default_group()
        else:
            self._group.abandon()
        self._control.leave(ended)
        return self._wait(self._control)

    def close(self) -> None:
        """From here on this process ends with its group."""
        self._set_able(able=False)

    def _set_able(self, *, able: bool) -> None:
        """Report a change: the agent ends a worker by SIGTERM that cannot leave its group without ending."""
        if self._control is not None and able is not self._is_able:
            self._is_able = able
            self._control.able(able=able)

    def _wait(self, control: Control) -> Environment | None:
        return control.next_place(lambda: self._stop.requested)
