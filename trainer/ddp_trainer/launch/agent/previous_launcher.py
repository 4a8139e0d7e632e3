"""Launcher that ran before this one in the same pod and crashed, and the record that this one leaves in the same case.

:class:`PreviousLauncher` is used by the agent, and by ``ddp-launch`` for the first message to the store.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace

from ddp_trainer.common.constants import Env, FailureReason, RestartCause
from ddp_trainer.launch.failures import describe_exit_code
from ddp_trainer.launch.host.parent_link import LauncherRecordFile, ParentLink
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.process.recorder import AgentRecorder


class PreviousLauncher:
    """Crash of the launcher that ran before this one, and the record of this one."""

    def __init__(
        self, node: str, environ: Mapping[str, str], *, is_recorded: bool, parent: ParentLink | None = None
    ) -> None:
        """Read the record.

        Args:
            node: Name of this node.
            environ: Environment of this launcher.
            is_recorded: True if a resident parent starts this launcher again, so that a record is kept.
            parent: Connection to that parent; None for none.
        """
        self.parent = parent
        """Connection to the resident parent, with the fork server that the last launcher has left."""
        self.is_recorded = is_recorded
        """True if the parent needs a record of this launcher."""
        self._file = LauncherRecordFile(environ if is_recorded else {})
        self._record = self._file.read()
        self.crash = self._crash(node, environ) if self._record.exit_code else None
        """Its crash; None if there was none, or if a store has counted it."""

    def _crash(self, node: str, environ: Mapping[str, str]) -> Failure:
        return Failure(
            generation=self._record.generation,
            rank=self._record.first_rank,
            local_rank=0,
            node=node,
            exit_code=self._record.exit_code,
            reason=FailureReason.LAUNCHER_CRASH,
            message=f"The launcher {describe_exit_code(self._record.exit_code)}, and its workers with it",
            host=environ.get(Env.NODE_NAME) or socket.gethostname(),
            timestamp=self._record.crashed_at,
        )

    def report(self, recorder: AgentRecorder) -> None:
        """Report the crash as a metric: no other process of this pod has."""
        if self.crash:
            recorder.failed(FailureReason.LAUNCHER_CRASH, self.crash.rank, self.crash.timestamp)

    def clear_crash(self) -> None:
        """Record that the store has counted the crash."""
        if self._record.exit_code:
            self._write(exit_code=0)

    def record_place(self, generation: Assignment, recorder: AgentRecorder) -> None:
        """Record the place of this launcher, whose crash counts from now on. Count the restart after the last crash."""
        if self.crash:
            recorder.count_restart(RestartCause.FAILURE)
            self.crash = None
        self._write(has_joined=True, generation=generation.number, first_rank=generation.first_rank)

    def launcher_ended(self) -> None:
        """Remove the record, because this launcher ends on purpose."""
        self._file.remove()

    def _write(self, **changed: int) -> None:
        self._record = replace(self._record, **changed)  # type: ignore[arg-type] # one of the fields is a bool
        self._file.write(self._record)
