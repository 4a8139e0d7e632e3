"""Rules that name the rank for which the others wait, and the data about ranks that they read; pure functions.

Both sides use this package: the store names a hanging rank past the limit, and ``kubectl ddp hang`` on demand. One copy
of the rules ensures that both name the same rank.

:class:`RankStatus` is one rank's state.

:func:`find_culprits` applies the rules in this order, and the first rule that finds ranks decides::

    a rank is in a debugger              no rank: a person works with it
    stopped by a signal                  the stopped ranks
    holds the GIL                        the ranks whose Python threads do not run
    fewer collectives than the others    the ranks that began the fewest
    fewer in another group               the ranks that began the fewest there and wait for no rank elsewhere
    as many, but not the same ones       the ranks whose order differs from the others', or from the earlier order
    fewer on the GPU                     the ranks with the fewest kernels started, or completed, if others have more
    not waiting in a collective          these ranks, if the program marks sections; if all are, none is killed

A rank that makes progress is slow and is never named. While any rank makes progress, the group does not hang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from ddp_trainer.common.strict_json import Bounds
from ddp_trainer.common.time_classes import Section

MOST_RANKS: Final = 1 << 22
MOST_GROUPS: Final = 16
"""Most process groups for which a rank reports its position."""
WARNING: Final = 0.5
"""Fraction of a time limit after which a rank is reported. At the limit, the launcher acts."""


class RankState(StrEnum):
    """State of a worker process, from the kernel and from the worker's heartbeat thread."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """Stopped by SIGSTOP or a terminal. It does not resume without a signal."""
    TRACED = "traced"
    """Held by a debugger; the launcher must not interfere."""
    DEAF = "deaf"
    """No Python thread has run for a long time: something holds the GIL."""


class Stage(StrEnum):
    """Stage of a worker before it has its first default process group."""

    APART = "apart"
    """It has not begun to make the group: it imports, reads, or waits for something else."""
    INIT = "meeting"
    """It waits in ``init_process_group`` for its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """Collective counts of one rank in one process group, from torch's flight recorder; -1 where it has none.

    On a GPU, the host enqueues a collective, its kernel starts it, and the end of the kernel completes it.
    """

    group: Annotated[str, Bounds(0, 200)]
    """torch's name of the group, the same on all its ranks; empty for the default group."""
    enqueued: Annotated[int, Bounds(-1, 1 << 53)]
    started: Annotated[int, Bounds(-1, 1 << 53)] = -1
    """Available only with ``TORCH_NCCL_ENABLE_TIMING=1``."""
    completed: Annotated[int, Bounds(-1, 1 << 53)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """State of one rank at one moment."""

    rank: Annotated[int, Bounds(0, MOST_RANKS)]
    local_rank: Annotated[int, Bounds(0, MOST_RANKS)]
    node: Annotated[str, Bounds(0, 253)]
    state: RankState
    seconds: Annotated[float, Bounds(-3600, 1e12)]
    """Time since the rank's last observed progress, in seconds."""
    limit: Annotated[float | None, Bounds(0, 1e12)]
    """Longest time in seconds that the rank may stay where it is; None for no limit."""
    notice: Annotated[float | None, Bounds(0, 1e12)] = None
    """Seconds after which the rank is reported if others wait for it; None for never, or for half of the limit."""
    section: Annotated[str, Bounds(0, 64)] = ""
    """Section that the rank has marked; empty for a script that marks none."""
    sequence: Annotated[int, Bounds(-1, 1 << 53)] = -1
    """Number of collectives begun in the default group; -1 where it is not known."""
    waits_in: Annotated[str, Bounds(0, 1000)] = ""
    """Collective that the rank has begun and not ended; empty for none, or where torch does not report it."""
    collectives: Annotated[tuple[Annotated[str, Bounds(0, 1000)], ...], Bounds(0, 256)] = ()
    """Last collectives begun in the default group, the latest last."""
    positions: Annotated[tuple[GroupPosition, ...], Bounds(0, MOST_GROUPS)] = ()
    """Positions in the process groups that have recorded collectives."""
    stage: Annotated[str, Bounds(0, 16)] = ""
    """A :class:`Stage`; empty once the rank has had a group."""
    world: Annotated[int, Bounds(0, MOST_RANKS)] = 0
    """World size that a rank in ``init_process_group`` waits for; 0 where it is not known."""
    is_busy: bool = False
    """The process works although it is in no group yet, or moves data before its first steps: it makes progress."""
    place: Annotated[str, Bounds(0, 1000)] = ""
    """Line of the user's code that the main thread executes."""
    stack: Annotated[str, Bounds(0, 16_000)] = ""
    """Stack of the main thread."""

    def has_exceeded_limit(self, part: float) -> bool:
        """Return whether the rank has made no progress for longer than this fraction of its limit."""
        return self.limit is not None and self.seconds > part * self.limit


def is_long(status: RankStatus) -> bool:
    """Return whether the launcher reports this rank if other ranks wait for it."""
    return status.has_exceeded_limit(WARNING) or (status.notice is not None and status.seconds > status.notice)


INIT_SECONDS: Final = 20.0
"""Seconds that ranks wait in ``init_process_group`` before those that are not there are named."""


@dataclass(frozen=True, slots=True)
class BlockingRank:
    """A rank that others wait for, and the reason."""

    status: RankStatus
    why: str
    """Reason, as a predicate that completes a sentence with the subject ``rank 3 on worker-1``."""
    is_waited_for: bool = True
    """True if another rank waits for it, as far as the reports show."""

    @property
    def may_be_killed(self) -> bool:
        """True if the rank may be killed. A rank that saves a checkpoint is not, unless a signal has stopped it."""
        is_saving = self.status.section == Section.CHECKPOINT and self.status.state is not RankState.STOPPED
        return self.is_waited_for and not is_saving

    @property
    def message(self) -> str:
        """The rank and the reason as one sentence."""
        return f"rank {self.status.rank} on {self.status.node} {self.why}"


Judgement = Callable[[RankStatus], bool]
"""Function that returns whether a rank has made no progress for so long that it may hang."""


def find_culprits(statuses: Sequence[RankStatus], stands_still: Judgement = is_long) -> list[BlockingRank]:
    """Return the ranks without progress that all others wait for; empty where the states do not show any."""
    if any(status.state is RankState.TRACED for status in statuses):
        return []
    if absent := _absent_ranks(statuses):
        return absent
    statuses = _at_work(statuses)
    named = next((found for rule in RULES if (found := rule(statuses))), [])
    overdue = [culprit for culprit in named if stands_still(culprit.status)]
    if not overdue or any(culprit.status.is_busy and not culprit.status.has_exceeded_limit(1.0) for culprit in overdue):
        return []
    # A rank that waits stopped soon after the one it waits for. One that stopped much later was busy with other work.
    since = max(culprit.status.seconds for culprit in overdue)
    return overdue if all(status.seconds > since / 2 for status in statuses) else []


def _absent_ranks(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    """Return the ranks that have not begun to make the first group, for which others have long waited.

    A rank that computes or reads may only be slow, and is not named.
    """
    initializing = [status for status in statuses if status.stage == Stage.INIT and is_long(status)]
    waited = max((status.seconds for status in initializing), default=0.0)
    apart = [replace(status, seconds=min(status.seconds, waited)) for status in statuses if status.stage == Stage.APART]
    if not initializing or any(status.is_busy or not status.stage for status in statuses if status not in initializing):
        return []
    return [BlockingRank(status, f"has not reached init_process_group{_where(status)}") for status in apart]


def _init_wait_message(statuses: Sequence[RankStatus]) -> str:
    """Return a sentence if all ranks have long waited in ``init_process_group``, else an empty string."""
    waited = min(status.seconds for status in statuses)
    if not all(status.stage == Stage.INIT and is_long(status) for status in statuses):
        return ""
    worlds = {status.world for status in statuses} - {0, len(statuses)}
    why = "a rank cannot reach another at MASTER_ADDR and MASTER_PORT, or their rank numbers are not 0 to N-1"
    if worlds:
        why = f"the script asks for a world of {max(worlds)} ranks; use WORLD_SIZE and RANK of the environment"
    return f"all {len(statuses)} ranks that run wait in init_process_group for {waited:.1f} s: {why}"


def all_waiting_message(statuses: Sequence[RankStatus], stands_still: Judgement = is_long) -> str:
    """Return a sentence if all ranks have long waited in the same collective, else an empty string."""
    if statuses and all(status.stage for status in statuses):
        return _init_wait_message(statuses)
    statuses = _at_work(statuses)
    waited_in = {(status.sequence, status.waits_in) for status in statuses}
    if (
        len(statuses) < 2
        or len(waited_in) > 1
        or not all(status.waits_in and stands_still(status) for status in statuses)
    ):
        return ""
    number, collective = waited_in.pop()
    since = min(status.seconds for status in statuses)
    return (
        f"all {len(statuses)} ranks that run wait in {name_of(collective)} #{number} for {since:.1f} s: "
        "another has ended early, or the network or a device does not deliver"
    )


def _at_work(statuses: Sequence[RankStatus]) -> list[RankStatus]:
    return [status for status in statuses if status.section != Section.ASIDE and not status.stage]


def _stopped(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    found = [status for status in statuses if status.state is RankState.STOPPED]
    return [BlockingRank(status, f"is stopped by a signal (state T){_where(status)}") for status in found]


def _gil_holders(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    found = [status for status in statuses if status.state is RankState.DEAF]
    return [
        BlockingRank(status, f"holds the GIL: no thread of Python gets a turn{_after(status)}{_where(status)}")
        for status in found
    ]


def _after(status: RankStatus) -> str:
    """Return the last collective that the rank began, as text."""
    if status.sequence < 0:
        return ""
    begun = name_of(status.collectives[-1]) if status.collectives else "collective"
    return f" since it began {begun} #{status.sequence}" if status.sequence else " before its first collective"


def _missing_in_collective(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    numbers = [status.sequence for status in statuses]
    first, last = min(numbers, default=-1), max(numbers, default=-1)
    if first < 0 or first == last:
        return []
    missed = _named(statuses, first)
    # A rank that waits for a rank of another group is behind here as a consequence.
    elsewhere = {culprit.status.rank for culprit in _missing_in_group(statuses)}
    behind = [status for status in statuses if status.sequence == first]
    behind = [status for status in behind if status.rank in elsewhere] or behind
    return [BlockingRank(status, f"did not enter {missed}{_where(status)}") for status in behind]


def _missing_in_group(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks by the collectives that they have begun in each process group."""
    return _missing_ranks(statuses, "enqueued", "did not enter {}", "")


def _missing_on_gpu(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks by the progress of their GPUs, where all hosts have enqueued the same number of collectives.

    Started kernels are known with ``TORCH_NCCL_ENABLE_TIMING=1``. Completed ones prove less: when a link breaks, a
    collective in a ring may complete on some ranks. So completed ones name only a minority.
    """
    started = _missing_ranks(statuses, "started", "has not started {} on its GPU", ", which others wait in")
    if started:
        return started
    unfinished = _missing_ranks(statuses, "completed", "has not completed {} on its GPU", ", which others have")
    return unfinished if 2 * len(unfinished) < len(statuses) else []


def _missing_ranks(statuses: Sequence[RankStatus], count: str, what: str, others: str) -> list[BlockingRank]:
    """Return the ranks with the lowest count in a group, without those that wait in some group for another rank."""
    groups: dict[str, list[tuple[RankStatus, int]]] = {}
    for status in statuses:
        for position in status.positions:
            groups.setdefault(position.group, []).append((status, getattr(position, count)))
    behind: dict[int, tuple[RankStatus, str]] = {}
    waiting: set[int] = set()
    for group, members in groups.items():
        first = min(number for _, number in members)
        if first < 0 or first == max(number for _, number in members):
            continue
        collective = f"collective #{first + 1} of process group {group}" if group else _named(statuses, first)
        for status, number in members:
            if number == first:
                behind.setdefault(status.rank, (status, f"{what.format(collective)}{others}{_where(status)}"))
            else:
                waiting.add(status.rank)
    return [BlockingRank(status, why) for rank, (status, why) in behind.items() if rank not in waiting]


def _named(statuses: Sequence[RankStatus], first: int) -> str:
    """Return the name and number of the default group's collective number ``first + 1``."""
    return f"{_collective(statuses, first)} #{first + 1}"


def _collective(statuses: Iterable[RankStatus], first: int) -> str:
    """Return the collective that other ranks began after the ``first`` collectives that all ranks began."""
    for status in statuses:
        place = first - status.sequence
        if place < 0 and -place <= len(status.collectives):
            return name_of(status.collectives[place])
    return "collective"


def _mismatched_collectives(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks that wait in a different collective although all ranks have begun the same number of collectives."""
    numbers = {status.sequence for status in statuses}
    if len(numbers) != 1 or min(numbers) < 0 or not all(status.collectives for status in statuses):
        return []
    orders = [status.collectives for status in statuses]
    known = min(map(len, orders))
    orders = [order[-known:] for order in orders]
    at = next((place for place in range(known) if len({order[place] for order in orders}) > 1), None)
    if at is None:
        return []
    expected = _expected([order[at] for order in orders], orders[0][:at])
    number = statuses[0].sequence - known + at + 1
    return [
        BlockingRank(
            status,
            f"entered {order[at]} where "
            + (f"{expected} was due" if expected else "others entered another")
            + f" as collective #{number}{_where(status)}",
        )
        for status, order in zip(statuses, orders, strict=True)
        if order[at] != expected
    ]


def _expected(entered: Sequence[str], before: Sequence[str]) -> str:
    """Return the collective that most ranks entered.

    Without a majority, it is the one that followed the same collectives before, else an empty string.
    """
    counts = Counter(entered).most_common(2)
    if len(counts) == 1 or counts[0][1] > counts[1][1]:
        return counts[0][0]
    for context in range(min(len(before), 32), 0, -1):
        tail = before[-context:]
        for end in range(len(before) - 1, context - 1, -1):
            if before[end - context : end] == tail and before[end] in entered:
                return before[end]
    return ""


def _outside_collectives(statuses: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks that wait in no collective, if the program marks its sections."""
    if not all(status.section for status in statuses):
        return []
    idle = [status for status in statuses if not status.waits_in]
    waited_for = len(idle) < len(statuses)
    return [
        BlockingRank(status, f"waits in no collective{_where(status)}", is_waited_for=waited_for) for status in idle
    ]


RULES: Final[tuple[Callable[[Sequence[RankStatus]], list[BlockingRank]], ...]] = (
    _stopped,
    _gil_holders,
    _missing_in_collective,
    _missing_in_group,
    _mismatched_collectives,
    _missing_on_gpu,
    _outside_collectives,
)
"""Rules in their order. The first rule that names a rank decides."""


def name_of(collective: str) -> str:
    """Return the name of a collective without the shapes of its inputs.

    >>> name_of("all_reduce[[4]]")
    'all_reduce'
    """
    return collective.partition("[")[0]


def waits_for(sentence: str) -> str:
    """Reword the sentence about a culprit for a rank that may only be slow.

    >>> waits_for("rank 3 on worker-1 did not enter all_reduce #8; at load.py:7 for 31.0 s (limit 600.0 s)")
    'the others wait for rank 3 on worker-1, which did not enter all_reduce #8; at load.py:7 for 31.0 s (limit 600.0 s)'
    """
    who = " ".join(sentence.split(" ", 4)[:4])
    return f"the others wait for {who}, which{sentence.removeprefix(who)}"


def _where(status: RankStatus) -> str:
    parts = [f"in section {status.section}" if status.section else "", f"at {status.place}" if status.place else ""]
    place = " ".join(part for part in parts if part)
    limit = "" if status.limit is None else f" (limit {status.limit:.1f} s)"
    return f"{f'; {place}' if place else ','} for {status.seconds:.1f} s{limit}"
