"""Failure reports for the store. :class:`FailureBuilder` describes a worker that exited or left its group, from its
exit code, its error file, its stderr and the kernel's OOM counter.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddp_trainer.common.constants import Env, Exit, FailureReason
from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.parallel_dims import LayoutError
from ddp_trainer.launch.agent.agent_state import AgentStateMachine
from ddp_trainer.launch.failures import failure_reason
from ddp_trainer.launch.hang.nested_launcher import launcher_in_stderr
from ddp_trainer.launch.protocol.message_fields import MESSAGE_CHARACTERS, STACK_CHARACTERS
from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.process.worker_protocol import Left


@dataclass(slots=True)
class FailureBuilder:
    """Builder of the failure reports of one agent."""

    core: AgentStateMachine
    environment: Mapping[str, str]
    """Environment of this launcher."""
    error_file: Callable[[int, int], Path]
    """Generation and local rank → path of torch's error file."""
    last_lines: Callable[[int], str] = lambda _: ""
    """Local rank → the end of its stderr."""
    parallel: str = ""
    """Parallel layouts that the workers report; if empty, those of the environment apply."""
    _oom_kills: int = field(default_factory=failure_reason.oom_kill_count)

    def ended(self, local_rank: int, exit_code: int) -> Failure:
        """Return the failure of a worker that has exited."""
        number = self.core.generation.number if self.core.generation else 0
        note = failure_reason.read_error_file(self.error_file(number, local_rank))
        kills, self._oom_kills = self._oom_kills, failure_reason.oom_kill_count()
        message = failure_reason.innermost_error(note.message) if note else ""
        aborted = failure_reason.abort_in(self.last_lines(local_rank)) if exit_code == failure_reason.ABORTED else ""
        reason = failure_reason.reason_of(exit_code, message, oom_killed=self._oom_kills > kills, aborted=aborted)
        if note and (nested := launcher_in_stderr(note.stack)):
            message = f"{nested}: {message}"
        told = failure_reason.sanitize_text(aborted or message, MESSAGE_CHARACTERS)
        failure = self._failure(local_rank, exit_code, reason, told or self._describe_exit(local_rank, exit_code))
        if note is None:
            return failure
        quoted = "" if message == note.message else f"{note.message}\n"
        stack = failure_reason.sanitize_text(quoted + note.stack, STACK_CHARACTERS)
        return replace(failure, timestamp=note.timestamp, stack=stack)

    def _describe_exit(self, local_rank: int, exit_code: int) -> str:
        """Describe an exit without an exception: the code, and what the program printed last on stderr."""
        how = failure_reason.describe_exit_code(exit_code)
        has_words = exit_code < Exit.SIGNAL_BASE or exit_code == failure_reason.ABORTED
        lines = self.last_lines(local_rank) if has_words else ""
        printed = launcher_in_stderr(lines) or failure_reason.last_words(lines)
        return failure_reason.sanitize_text(f"{how}: {printed}" if printed else how, MESSAGE_CHARACTERS)

    def finished(self, local_rank: int) -> Failure:
        """Return the failure that counts for a worker that exited with 0, if another rank fails without it."""
        return self._failure(local_rank, 0, FailureReason.EARLY_EXIT, failure_reason.EARLY_EXIT)

    def left(self, local_rank: int, left: Left) -> Failure:
        """Return the failure of a worker that left its group and keeps its process."""
        message = failure_reason.sanitize_text(left.why, MESSAGE_CHARACTERS)
        reason = failure_reason.reason_of(left.exit_code, left.why, oom_killed=False)
        return self._failure(local_rank, left.exit_code, reason, message)

    def _failure(self, local_rank: int, exit_code: int, reason: FailureReason, message: str) -> Failure:
        generation, node = self.core.generation, self.core.node
        rank = (generation.first_rank if generation else 0) + local_rank
        return Failure(
            generation=generation.number if generation else 0,
            rank=rank,
            local_rank=local_rank,
            node=node.name,
            exit_code=exit_code,
            reason=reason,
            message=message,
            host=self.environment.get(Env.NODE_NAME) or socket.gethostname(),
            timestamp=time.time(),
            place=self._place(rank, generation.world_size) if generation else "",
        )

    def _place(self, rank: int, world_size: int) -> str:
        try:
            parallel = self.parallel or self.environment.get(Env.PARALLEL, "")
            return LayoutRange.parse(parallel).choose(world_size).describe(rank)
        except LayoutError:  # there is no layout, or it does not fit; the workers report the latter
            return ""
