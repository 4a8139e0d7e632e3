"""Failures of workers: what each costs (tables), its class (:func:`reason_of`), and what follows (:class:`Budget`).

:class:`FailureBuilder` describes a worker that exited or left its group, from its exit code, its error file, its stderr
and the kernel's OOM counter. :func:`root_cause` selects the cause among the failures of several ranks.
:meth:`Budget.decide_restart` then decides whether another group follows. :func:`finish_of` makes the agent's last
action, and :func:`lines` the last lines of the launcher.

When one rank dies, its peers also fail in a collective, within milliseconds and by their own clocks. Therefore a
failure with the reason "a peer has gone" is never the first failure if there is another one. A worker that SIGTERM
stopped without a request of its agent, or a rank that exited with 0 before, is also the cause of such a failure.

How to change what a death of a worker costs: add a row to ``CAUSE_OF_CODE`` (a signal has the code 128 + its number).
Metrics and logs count the restart by its cause. Causes in ``CHARGED`` count against ``--max-restarts``; of the others,
``PREEMPTION`` is limited, by ``MOST_FREE_STOPS``. A code in ``HOPELESS`` ends the run without a restart.
``test_restart_budget.py`` plays deaths. Update "What happens when" in ``docs/launcher.md``, and add a line to
``CHANGELOG.md``; nothing else has to change. A new reason for the error file and the log is a member of
``FailureReason`` and a row in ``_REASON_OF_SIGNAL`` or ``_REASON_OF_MESSAGE``. Add it to ``USER_REASONS`` of
``kubectl_ddp/status/termination_message.py`` if the user's code causes it, and its words to ``_ENDS`` of
``ddp_report/story.py``. ``test_metrics_registry.py`` limits the series of a pod.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, Exit, FailureReason, RestartCause
from ddp_trainer.common.gpu_faults import fault_in, is_out_of_gpu_memory, nccl_config_error
from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.launch.protocol import exit_codes
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.message_fields import MESSAGE_CHARACTERS, STACK_CHARACTERS
from ddp_trainer.launch.protocol.messages import Failure, Over, Policy, Verdict
from ddp_trainer.process.worker_protocol import Left

CAUSE_OF_CODE: Final = {
    int(Exit.TERMINATED): RestartCause.PREEMPTION,
    int(Exit.STALE_GENERATION): RestartCause.PREEMPTION,
    int(Exit.HANG): RestartCause.HANG,
}
"""Cause of a restart, by the exit code of the failed worker. Any other code is a plain failure.

A worker that died of signal ``n`` has the code 128 + ``n``.
"""

CHARGED: Final = (RestartCause.FAILURE, RestartCause.HANG)
"""Causes that use up the restart budget, ``--max-restarts``. The other causes are free."""

HOPELESS: Final = frozenset({int(Exit.USAGE), int(Exit.DO_NOT_RESTART), int(Exit.NOT_FIT)})
"""Codes that no restart can fix: an invalid command line, a worker that requests no restart, unfit nodes."""

CODES_OF_A_REQUESTED_STOP: Final = {
    Exit.TERMINATED,
    Exit.STALE_GENERATION,
    Exit.SIGNAL_BASE + signal.SIGKILL,
    Exit.SIGNAL_BASE + signal.SIGINT,
    Exit.SIGNAL_BASE + signal.SIGHUP,
}
"""Exit codes that do not count as failures while the agent stops its workers.

Of a worker that exits by itself, :data:`CAUSE_OF_CODE` classifies the code.
"""

MOST_FREE_STOPS: Final = 10
"""Number of times in a row that a group may stop with a free exit code and all its members. After that, a stop is a
failure.

Without this limit, a script that always exits with 143 would restart forever.
"""
MOST_REPEATS: Final = 3
"""Number of groups in a row that may end with the same error before the first step of the run."""
REPEATABLE: Final = frozenset(
    {FailureReason.PYTHON_EXCEPTION, FailureReason.IMPORT_ERROR, FailureReason.GPU_OOM, FailureReason.OTHER}
)
"""Reasons of failures that the program itself causes. Another cause, such as a lost peer, may be gone the next time."""
_INCURABLE: Final = ("ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")
"""Exceptions before the first step that are the same at every start."""

OF_A_COLLECTIVE: Final = {FailureReason.COLLECTIVE_ERROR, FailureReason.COLLECTIVE_TIMEOUT}
"""Reasons of failures of a collective, which count in the rank's metrics file."""

CONSEQUENCES: Final = {*OF_A_COLLECTIVE, FailureReason.SIGTERM}
"""Reasons of failures that need no fault of the worker itself: a peer died, or SIGTERM stopped the worker."""

EARLY_EXIT: Final = "ended with code 0 before the others"
"""Message of a rank that exited with 0 while other ranks still needed it."""

_REASON_OF_SIGNAL: Final = {
    signal.SIGKILL: FailureReason.SIGKILL,
    signal.SIGSEGV: FailureReason.SIGSEGV,
    signal.SIGABRT: FailureReason.SIGABRT,
    signal.SIGTERM: FailureReason.SIGTERM,
}

ABORTED: Final = Exit.SIGNAL_BASE + signal.SIGABRT

_ABORTS: Final = (
    re.compile(r"watchdog thread terminated with exception: (CUDA error: .*)"),
    re.compile(r"((?:NCCL|CUDA) error: .*)"),
    re.compile(r"(Watchdog caught collective operation timeout: .*)"),
    re.compile(r"(watchdog got stuck for \d+ seconds without making progress[^.\n]*)"),
)
"""Searched in this order, because collectives also time out after a CUDA error."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_DUMP: Final = "Fatal Python error:"
"""First words of the stacks that Python's faulthandler appends to what a program prints before it aborts."""
_TYPE: Final = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
"""Matches the exception class at the start of Python's error line."""

_OF_CUDA: Final = re.compile(r"(?i)nccl|cuda")

_FAILED_GPU: Final = "GpuFailed:"
_CONFIGURATION: Final = ("BadConfig:", "BadTask:", "BadData:")
"""Errors of the reference trainer, as they begin in its error file."""

_REASON_OF_MESSAGE: Final = (
    (re.compile(r"^MemoryError|DefaultCPUAllocator: can't allocate memory"), FailureReason.HOST_OOM),
    (re.compile(r"^(ImportError|ModuleNotFoundError)\b"), FailureReason.IMPORT_ERROR),
    (re.compile(r"watchdog got stuck"), FailureReason.COLLECTIVE_TIMEOUT),
    (
        re.compile(r"(?i)(gloo|nccl|collective|Dist\w*Error|monitoredBarrier).*(timed? ?out|timeout)"),
        FailureReason.COLLECTIVE_TIMEOUT,
    ),
    (
        re.compile(r"(?i)gloo|nccl|^Dist\w*Error|connection (closed|reset) by peer|connectFullMesh"),
        FailureReason.COLLECTIVE_ERROR,
    ),
)
"""Searched in this order."""


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """Error file of a dead worker, in the format of torch's ``@record``."""

    message: str
    stack: str
    timestamp: float


def read_error_file(path: Path) -> ErrorFile | None:
    """Read the error file of torch's ``@record`` or of the launcher's bootstrap.

    Returns:
        The error; None if the file is missing or unreadable.
    """
    try:
        error = json.loads(path.read_text(errors="replace"))["message"]
        if isinstance(error, str):
            return ErrorFile(error, "", path.stat().st_mtime)
        extra = error.get("extraInfo", {})
        when = float(extra.get("timestamp_ns", 0)) / 1e9 or path.stat().st_mtime
        return ErrorFile(str(error["message"]), str(extra.get("py_callstack", "")), when)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def innermost_error(message: str) -> str:
    r"""Return the error at the end of the last traceback that a message quotes, or the message if it quotes none.

    A data loader, ``mp.spawn`` and pools of processes put the traceback of another process into their message.

    >>> innermost_error("RuntimeError: in worker 0.\nTraceback (most recent call last):\n  File\nOSError: x")
    'OSError: x'
    """
    _, found, quoted = message.rpartition(_TRACEBACK)
    lines = quoted.strip("\n").splitlines() if found else []
    begin = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), None)
    return message if begin is None else "\n".join(lines[begin:])


def last_output_line(stderr: str) -> str:
    r"""Return the last line that a program printed before it ended without an exception; empty if there is none.

    >>> last_output_line("usage: train.py\ntrain.py: error: unrecognized arguments: --lr\n\n")
    'train.py: error: unrecognized arguments: --lr'
    """
    own = stderr.partition(_DUMP)[0]
    return next((line.strip() for line in reversed(own.splitlines()) if line.strip()), "")


def abort_in(stderr: str) -> str:
    """Return the message with which a thread of torch ended the process by SIGABRT.

    The NCCL watchdog ends a process when a collective takes too long, and on CUDA errors. It writes no error file.

    Args:
        stderr: Last lines that the process printed.

    Returns:
        The message as torch printed it; empty if there is none.
    """
    for pattern in _ABORTS:
        if match := pattern.search(stderr):
            return match[1].strip().rstrip(".")
    return ""


def reason_of(exit_code: int, message: str, *, oom_killed: bool, aborted: str = "") -> FailureReason:
    """Return the class of a failure: by signal, else by message, else unknown.

    Args:
        exit_code: Exit code of the worker, as a shell shows it.
        message: Message of its error file; empty if there is none.
        oom_killed: Whether the kernel killed a process of the container because memory ran out.
        aborted: Result of :func:`abort_in`.
    """
    if exit_code == ABORTED and aborted:
        return _reason_of_message(aborted)
    died_of = _signal(exit_code)
    if exit_code == Exit.NOT_FIT:
        return FailureReason.OTHER
    if died_of in _REASON_OF_SIGNAL:
        reason = _REASON_OF_SIGNAL[died_of]
        return FailureReason.HOST_OOM if reason is FailureReason.SIGKILL and oom_killed else reason
    if message:
        return _reason_of_message(message)
    return FailureReason.GPU_FAULT if exit_code == Exit.GPU_FAULT else FailureReason.OTHER


def _reason_of_message(message: str) -> FailureReason:
    """Classify a message. The cause that it names comes first, because every NCCL message mentions a collective."""
    if is_out_of_gpu_memory(message):
        return FailureReason.GPU_OOM
    if message.startswith(_FAILED_GPU) or fault_in(message):
        return FailureReason.GPU_FAULT
    if message.startswith(_CONFIGURATION) or nccl_config_error(message):
        return FailureReason.PYTHON_EXCEPTION
    return next((why for pattern, why in _REASON_OF_MESSAGE if pattern.search(message)), FailureReason.PYTHON_EXCEPTION)


def is_of_a_gpu(failure: Failure) -> bool:
    """Return whether a broken GPU can be the cause: a GPU fault, or a timeout or abort in CUDA or NCCL."""
    if failure.reason in {FailureReason.COLLECTIVE_TIMEOUT, FailureReason.SIGABRT}:
        return _OF_CUDA.search(failure.message) is not None
    return failure.reason == FailureReason.GPU_FAULT


def is_of_suspect_gpu(failure: Failure, *, after_any: bool) -> bool:
    """Return whether the GPUs of the node must be checked after a failure.

    Args:
        failure: Failure of a worker of the node.
        after_any: GPUs are suspect after any failure of a worker, not only after a GPU fault.
    """
    if failure.exit_code == Exit.NOT_FIT:
        return False  # a preflight has checked the node already
    return is_of_a_gpu(failure) or (after_any and is_primary_failure(failure.reason))


def is_primary_failure(reason: str) -> bool:
    """Return whether a worker failed by itself, and not because another worker had ended."""
    return reason not in {*CONSEQUENCES, FailureReason.EARLY_EXIT}


def describe_exit_code(exit_code: int) -> str:
    """Describe an exit code in words."""
    if died_of := _signal(exit_code):
        hint = ", as where /dev/shm is full" if died_of is signal.SIGBUS else ""
        return f"died of {died_of.name}{hint}"
    return f"exited with code {exit_code}"


def type_of(exit_code: int, message: str) -> str:
    """Return the class of the exception, the name of the signal, or ``exit``.

    >>> type_of(1, "torch.OutOfMemoryError: CUDA"), type_of(137, "died of SIGKILL"), type_of(3, "exited with code 3")
    ('torch.OutOfMemoryError', 'SIGKILL', 'exit')
    """
    if died_of := _signal(exit_code):
        return died_of.name
    match = _TYPE.match(message)
    return match[1] if match else "exit"


def root_cause(first: Failure, other: Failure) -> Failure:
    """Return the failure that caused the other one, ordered by cause, then by time."""
    cause, consequence = (other, first) if _order(other) < _order(first) else (first, other)
    if cause.message == EARLY_EXIT and consequence.reason in CONSEQUENCES:
        what, _, _ = consequence.message.partition("\n")
        return replace(cause, message=f"{EARLY_EXIT}; rank {consequence.rank} then failed: {what}")
    return cause


def _order(failure: Failure) -> tuple[int, float]:
    """Sort key: failures with a cause of their own, then those that explain only the failures of their peers."""
    explains_peers = (FailureReason.SIGTERM, FailureReason.EARLY_EXIT)
    if failure.reason in explains_peers:
        return 1 + explains_peers.index(failure.reason), failure.timestamp
    return 3 if failure.reason in CONSEQUENCES else 0, failure.timestamp


@dataclass(slots=True)
class Budget:
    """Restarts of one run."""

    restarts: dict[str, int] = field(default_factory=dict)
    """Cause → count over the run so far."""
    has_stepped: bool = False
    """A worker of the run has taken a step, or may have."""
    hopeless_after: int = 0
    """Number of groups in a row after whose equal error the run was given up; 0 if it was not."""
    _repeats: int = 0
    _repeated: tuple[int, str] = (0, "")
    """Exit code and message of the last error before the first step."""
    _free_stops: int = 0
    _lost: set[str] = field(default_factory=set)
    """Names of lost members whose successors have not come. Their launchers may have crashed."""

    def left(self, policy: Policy | None) -> int:
        """Return the number of restarts that failures may still use; 0 without a policy."""
        spent = sum(self.restarts.get(cause, 0) for cause in CHARGED)
        return max(0, policy.max_restarts - spent) if policy else 0

    def merge_counts(self, restarts: Mapping[str, int]) -> None:
        """Merge the counts that another node has reported of the same run. The larger count wins."""
        causes = restarts.keys() | self.restarts.keys()
        self.restarts = {cause: max(restarts.get(cause, 0), self.restarts.get(cause, 0)) for cause in causes}

    def decide_restart(self, first: Failure | None, policy: Policy | None, *, membership_changed: bool) -> int:
        """Return the exit code of a run that is given up; 0 if another group follows, whose restart is then counted.

        Args:
            first: First failure of the group; None if there was none.
            policy: Settings of the run.
            membership_changed: Whether the group ended because of a lost, new or leaving node.
        """
        cause = RestartCause.RESIZE if membership_changed or first is None else self._cause_of(first)
        self._free_stops = self._free_stops + 1 if cause is RestartCause.PREEMPTION else 0
        if first is not None and cause in CHARGED:
            if self._cannot_heal(first):
                self.hopeless_after = self._repeats
                return exit_codes.of_given_up_run(first.exit_code)
            if first.exit_code in HOPELESS or self.left(policy) == 0:
                return exit_codes.of_given_up_run(first.exit_code)
        self.count(cause)
        return 0

    def _cannot_heal(self, first: Failure) -> bool:
        """Return whether an error before the first step of the run would only come again."""
        if self.has_stepped or first.reason not in REPEATABLE:
            self._repeats = 0
            return False
        error = first.exit_code, first.message.partition("\n")[0]
        self._repeats = self._repeats + 1 if error == self._repeated else 1
        self._repeated = error
        return self._repeats >= MOST_REPEATS or type_of(first.exit_code, first.message) in _INCURABLE

    def record_lost_member(self, name: str) -> None:
        """Record that a member of the newest group was lost: its launcher may have crashed."""
        self._lost.add(name)

    def count_crash(self, name: str, crash: Failure | None, policy: Policy | None) -> int:
        """Count the crash of a lost member's launcher as a failure. Returns the exit code of a run that is given up; 0
        if it continues.

        Each loss of a member is charged once, to the agent that has its name next. An agent outside of the group, such
        as a spare, is charged nothing; its resident parent limits its crashes.

        Args:
            name: Name of the agent that follows in the same pod.
            crash: Crash that it reports; None if there was none.
            policy: Settings of the run.
        """
        if name not in self._lost:
            return 0
        self._lost.remove(name)
        if crash is None:
            return 0
        if self.left(policy) == 0:
            return exit_codes.of_given_up_run(crash.exit_code)
        self.count(RestartCause.FAILURE)
        return 0

    def count(self, cause: RestartCause) -> None:
        """Count a restart."""
        self.restarts[cause.value] = self.restarts.get(cause, 0) + 1

    def _cause_of(self, first: Failure) -> RestartCause:
        cause = CAUSE_OF_CODE.get(first.exit_code, RestartCause.FAILURE)
        if cause is RestartCause.PREEMPTION and self._free_stops >= MOST_FREE_STOPS:
            return RestartCause.FAILURE
        return cause


def sanitize_text(text: str, limit: int) -> str:
    """Return text of a worker in at most ``limit`` characters, without secrets and terminal controls.

    All messages and stacks of failures come from this function. So the stored error, termination message, annotation
    and log are the same.
    """
    return shorten(clean_text(text), limit)


def shorten(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters, cut in the middle.

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def oom_kill_count(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this container the kernel has killed because memory ran out.

    Returns:
        ``oom_kill`` of the cgroup's ``memory.events``; 0 if it is not available.
    """
    try:
        counters = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
        return int(counters.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def _signal(exit_code: int) -> signal.Signals | None:
    try:
        return signal.Signals(exit_code - Exit.SIGNAL_BASE)
    except ValueError:
        return None


def lines(finish: Finish, *, restarts: Mapping[str, int], own_stack_shown: bool, own_node: str) -> list[str]:
    """Return the last lines of the launcher, in order.

    The stack of a failure is included unless a worker of this node has printed it. No worker can print the stack of a
    hang.

    Args:
        finish: Last action of the agent.
        restarts: Number of restarts by cause.
        own_stack_shown: Whether a worker of this node has printed its stack.
        own_node: Name of this node.
    """
    output = []
    failure = finish.failure
    is_hang = failure is not None and failure.reason == FailureReason.HANG
    if failure and failure.stack and (is_hang or not (own_stack_shown and failure.node == own_node)):
        output += [f"rank {failure.rank} | {line}" for line in failure.stack.rstrip().splitlines()]
    output.append(f"Restarts by cause: {by_cause(restarts)}.")
    return [*output, *filter(None, [final_message(finish)])]


def final_message(finish: Finish) -> str:
    """Describe the first failure and the end of the run; empty if there is nothing to report."""
    parts = [describe_failure(finish.failure)] if finish.failure else []
    return " ".join(part for part in [*parts, finish.message] if part)


def by_cause(restarts: Mapping[str, int]) -> str:
    """Format counts by cause, the most frequent first.

    >>> by_cause({"resize": 1, "failure": 3}), by_cause({})
    ('failure 3, resize 1', 'none')
    """
    ranked = sorted(restarts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in ranked if count) or "none"


def describe_failure(failure: Failure) -> str:
    """Describe in one sentence which worker failed first, and how."""
    if failure.reason == FailureReason.LAUNCHER_CRASH:
        return f"{failure.message}, on {failure.node}."
    if failure.reason == FailureReason.HANG:
        return f"{failure.message}, and was killed for it."
    first_line = failure.message.partition("\n")[0].rstrip(".")
    host = f" ({failure.host})" if failure.host and not failure.node.startswith(failure.host) else ""
    place = f" ({failure.place})" if failure.place else ""
    who = f"Rank {failure.rank}{place} on {failure.node}{host}"
    if failure.reason == FailureReason.EARLY_EXIT:
        return f"{who} {first_line}."
    how = describe_exit_code(failure.exit_code)
    what = first_line if first_line.startswith(how) else f"{how}: {first_line}"
    hint = " (out of memory)" if failure.reason == FailureReason.HOST_OOM else ""
    return f"{who} failed first, it {what}{hint}."


def finish_of(over: Over) -> Finish:
    """Return the agent's last action after the store's :class:`Over`.

    Its exit code is the store's, see :mod:`ddp_trainer.launch.protocol.exit_codes`. It has a sentence if the agent has
    not seen the reason itself.
    """
    if over.verdict is Verdict.SUCCEEDED:
        sentence = "The run was complete before this pod came." if over.late else ""
        return Finish(Exit.SUCCESS, sentence, None, over.restarts, over.summary)
    why = "The run was given up before this pod came." if over.late else ""
    is_hopeless = over.failure is not None and over.failure.exit_code in HOPELESS
    if over.exit_code == Exit.DO_NOT_RESTART and not over.late and not is_hopeless:
        spent = sum(over.restarts.get(cause, 0) for cause in CHARGED)
        why = f"All {spent} restarts are spent." if spent else "The run allows no restarts."
    if over.failure is not None and not over.late and over.repeats:
        why = _no_restart_reason(over.repeats)
    return Finish(over.exit_code, why, over.failure, over.restarts)


def _no_restart_reason(repeats: int) -> str:
    """Return why an error before the first step ends a run that may still restart."""
    if repeats == 1:
        return "No restart can heal this, so none was tried."
    return f"It came {repeats} times in the same words before the first step, so no further restart was tried."


@dataclass(slots=True)
class FailureBuilder:
    """Builder of the failure reports of one agent."""

    node: str
    """Name of this node."""
    environment: Mapping[str, str]
    """Environment of this launcher."""
    error_file: Callable[[int, int], Path]
    """Generation and local rank → path of torch's error file."""
    last_lines: Callable[[int], str] = lambda _: ""
    """Local rank → the end of its stderr."""
    parallel: str = ""
    """Parallel layouts that the workers report; if empty, those of the environment apply."""
    _oom_kills: int = field(default_factory=oom_kill_count)

    def ended(self, group: Assignment | None, local_rank: int, returncode: int) -> Failure:
        """Return the failure of a worker that has exited.

        Args:
            group: Group that it was in; None if it was in none.
            local_rank: Local rank of the worker.
            returncode: Its return code, negative for a signal. The failure of a worker that exited with 0 counts only
                if another rank fails without it.
        """
        if returncode == Exit.SUCCESS:
            return self._failure(group, local_rank, returncode, FailureReason.EARLY_EXIT, EARLY_EXIT)
        exit_code = returncode if returncode > 0 else Exit.SIGNAL_BASE - returncode
        note = read_error_file(self.error_file(group.number if group else 0, local_rank))
        kills, self._oom_kills = self._oom_kills, oom_kill_count()
        message = innermost_error(note.message) if note else ""
        aborted = abort_in(self.last_lines(local_rank)) if exit_code == ABORTED else ""
        reason = reason_of(exit_code, message, oom_killed=self._oom_kills > kills, aborted=aborted)
        if note and (nested := launcher_in_stderr(note.stack)):
            message = f"{nested}: {message}"
        text = aborted or message or self._describe_exit(local_rank, exit_code)
        failure = self._failure(group, local_rank, exit_code, reason, sanitize_text(text, MESSAGE_CHARACTERS))
        if note is None:
            return failure
        quoted = "" if message == note.message else f"{note.message}\n"
        stack = sanitize_text(quoted + note.stack, STACK_CHARACTERS)
        return replace(failure, timestamp=note.timestamp, stack=stack)

    def _describe_exit(self, local_rank: int, exit_code: int) -> str:
        """Describe an exit without an exception: the code, and what the program printed last on stderr."""
        how = describe_exit_code(exit_code)
        has_words = exit_code < Exit.SIGNAL_BASE or exit_code == ABORTED
        lines = self.last_lines(local_rank) if has_words else ""
        printed = launcher_in_stderr(lines) or last_output_line(lines)
        return f"{how}: {printed}" if printed else how

    def left(self, group: Assignment | None, local_rank: int, left: Left) -> Failure:
        """Return the failure of a worker that left its group and keeps its process."""
        message = sanitize_text(left.why, MESSAGE_CHARACTERS)
        reason = reason_of(left.exit_code, left.why, oom_killed=False)
        return self._failure(group, local_rank, left.exit_code, reason, message)

    def _failure(
        self, group: Assignment | None, local_rank: int, exit_code: int, reason: FailureReason, message: str
    ) -> Failure:
        rank = (group.first_rank if group else 0) + local_rank
        return Failure(
            generation=group.number if group else 0,
            rank=rank,
            local_rank=local_rank,
            node=self.node,
            exit_code=exit_code,
            reason=reason,
            message=message,
            host=self.environment.get(Env.NODE_NAME) or socket.gethostname(),
            timestamp=time.time(),
            place=self._place(rank, group.world_size) if group else "",
        )

    def _place(self, rank: int, world_size: int) -> str:
        parallel = self.parallel or self.environment.get(Env.PARALLEL, "")
        try:
            return "" if not parallel else LayoutRange.parse(parallel).choose(world_size).describe(rank)
        except LayoutError:  # it does not fit, which the workers report
            return ""


_TRACES: Final = (
    (re.compile(r"torch/distributed/launcher/api\.py|torch\.distributed\.elastic\."), "torchrun"),
    (re.compile(r"accelerate/commands/launch\.py"), "accelerate launch"),
    (re.compile(r"deepspeed/launcher/"), "deepspeed"),
)
_ERROR: Final = re.compile(r"^(?:\[\w+\]:?\s*)*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


def launcher_in_stderr(stderr: str) -> str:
    r"""Return that a launcher failed which the script had started, and its first error; empty if none did.

    >>> launcher_in_stderr("[rank0]: ValueError: x\n  File torch/distributed/launcher/api.py\nChildFailedError:")
    'torchrun, which the script starts, failed: ValueError: x'
    """
    name = next((launcher for pattern, launcher in _TRACES if pattern.search(stderr)), "")
    error = _ERROR.search(stderr)
    return f"{name}, which the script starts, failed{f': {error[1]}' if error else ''}" if name else ""
