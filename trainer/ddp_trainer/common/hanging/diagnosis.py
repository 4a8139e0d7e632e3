"""Rules that name the ranks for which a group waits, with reasons; pure functions of the looks at all ranks.

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
from typing import Final

from ddp_trainer.common.hanging.rank_status import RankState, RankStatus, Stage, is_long
from ddp_trainer.common.time_classes import Section

MEETING_SECONDS: Final = 20.0
"""Seconds that ranks wait in ``init_process_group`` before those that are not there are named."""


@dataclass(frozen=True, slots=True)
class BlockingRank:
    """A rank that others wait for, and the reason."""

    look: RankStatus
    why: str
    """Reason, as a predicate that completes a sentence with the subject ``rank 3 on worker-1``."""
    is_waited_for: bool = True
    """True if another rank waits for it, as far as the reports show."""

    @property
    def may_be_killed(self) -> bool:
        """True if the rank may be killed. A rank that saves a checkpoint is not, unless a signal has stopped it."""
        is_saving = self.look.section == Section.CHECKPOINT and self.look.state is not RankState.STOPPED
        return self.is_waited_for and not is_saving

    @property
    def message(self) -> str:
        """The rank and the reason as one sentence."""
        return f"rank {self.look.rank} on {self.look.node} {self.why}"


Judgement = Callable[[RankStatus], bool]
"""Function that returns whether a rank has made no progress for so long that it may hang."""


def find_culprits(looks: Sequence[RankStatus], stands_still: Judgement = is_long) -> list[BlockingRank]:
    """Return the ranks without progress that all others wait for; empty where the looks do not show any."""
    if any(look.state is RankState.TRACED for look in looks):
        return []
    if absent := _absent_ranks(looks):
        return absent
    looks = _at_work(looks)
    named = next((found for rule in RULES if (found := rule(looks))), [])
    overdue = [culprit for culprit in named if stands_still(culprit.look)]
    if not overdue or any(culprit.look.is_busy and not culprit.look.has_exceeded_limit(1.0) for culprit in overdue):
        return []
    # A rank that waits stopped soon after the one it waits for. One that stopped much later was busy with other work.
    since = max(culprit.look.seconds for culprit in overdue)
    return overdue if all(look.seconds > since / 2 for look in looks) else []


def _absent_ranks(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    """Return the ranks that have not begun to make the first group, for which others have long waited.

    A rank that computes or reads may only be slow, and is not named.
    """
    meeting = [look for look in looks if look.stage == Stage.MEETING and is_long(look)]
    waited = max((look.seconds for look in meeting), default=0.0)
    apart = [replace(look, seconds=min(look.seconds, waited)) for look in looks if look.stage == Stage.APART]
    if not meeting or any(look.is_busy or not look.stage for look in looks if look not in meeting):
        return []
    return [BlockingRank(look, f"has not reached init_process_group{_where(look)}") for look in apart]


def _meeting_message(looks: Sequence[RankStatus]) -> str:
    """Return a sentence if all ranks have long waited in ``init_process_group``, else an empty string."""
    waited = min(look.seconds for look in looks)
    if not all(look.stage == Stage.MEETING and is_long(look) for look in looks):
        return ""
    worlds = {look.world for look in looks} - {0, len(looks)}
    why = "a rank cannot reach another at MASTER_ADDR and MASTER_PORT, or their rank numbers are not 0 to N-1"
    if worlds:
        why = f"the script asks for a world of {max(worlds)} ranks; use WORLD_SIZE and RANK of the environment"
    return f"all {len(looks)} ranks that run wait in init_process_group for {waited:.1f} s: {why}"


def all_waiting_message(looks: Sequence[RankStatus], stands_still: Judgement = is_long) -> str:
    """Return a sentence if all ranks have long waited in the same collective, else an empty string."""
    if looks and all(look.stage for look in looks):
        return _meeting_message(looks)
    looks = _at_work(looks)
    waited_in = {(look.sequence, look.waits_in) for look in looks}
    if len(looks) < 2 or len(waited_in) > 1 or not all(look.waits_in and stands_still(look) for look in looks):
        return ""
    number, collective = waited_in.pop()
    since = min(look.seconds for look in looks)
    return (
        f"all {len(looks)} ranks that run wait in {name_of(collective)} #{number} for {since:.1f} s: "
        "another has ended early, or the network or a device does not deliver"
    )


def _at_work(looks: Sequence[RankStatus]) -> list[RankStatus]:
    return [look for look in looks if look.section != Section.ASIDE and not look.stage]


def _stopped(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    found = [look for look in looks if look.state is RankState.STOPPED]
    return [BlockingRank(look, f"is stopped by a signal (state T){_where(look)}") for look in found]


def _gil_holders(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    found = [look for look in looks if look.state is RankState.DEAF]
    return [
        BlockingRank(look, f"holds the GIL: no thread of Python gets a turn{_after(look)}{_where(look)}")
        for look in found
    ]


def _after(look: RankStatus) -> str:
    """Return the last collective that the rank began, as text."""
    if look.sequence < 0:
        return ""
    begun = name_of(look.collectives[-1]) if look.collectives else "collective"
    return f" since it began {begun} #{look.sequence}" if look.sequence else " before its first collective"


def _lagging_in_collective(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    numbers = [look.sequence for look in looks]
    first, last = min(numbers, default=-1), max(numbers, default=-1)
    if first < 0 or first == last:
        return []
    missed = _named(looks, first)
    # A rank that waits for a rank of another group is behind here as a consequence.
    elsewhere = {culprit.look.rank for culprit in _lagging_in_group(looks)}
    behind = [look for look in looks if look.sequence == first]
    behind = [look for look in behind if look.rank in elsewhere] or behind
    return [BlockingRank(look, f"did not enter {missed}{_where(look)}") for look in behind]


def _lagging_in_group(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks by the collectives that they have begun in each process group."""
    return _lagging_ranks(looks, "enqueued", "did not enter {}", "")


def _lagging_on_gpu(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks by the progress of their GPUs, where all hosts have enqueued the same number of collectives.

    Started kernels are known with ``TORCH_NCCL_ENABLE_TIMING=1``. Completed ones prove less: when a link breaks, a
    collective in a ring may complete on some ranks. So completed ones name only a minority.
    """
    started = _lagging_ranks(looks, "started", "has not started {} on its GPU", ", which others wait in")
    if started:
        return started
    unfinished = _lagging_ranks(looks, "completed", "has not completed {} on its GPU", ", which others have")
    return unfinished if 2 * len(unfinished) < len(looks) else []


def _lagging_ranks(looks: Sequence[RankStatus], count: str, what: str, others: str) -> list[BlockingRank]:
    """Return the ranks with the lowest count in a group, without those that wait in some group for another rank."""
    groups: dict[str, list[tuple[RankStatus, int]]] = {}
    for look in looks:
        for position in look.positions:
            groups.setdefault(position.group, []).append((look, getattr(position, count)))
    behind: dict[int, tuple[RankStatus, str]] = {}
    waiting: set[int] = set()
    for group, members in groups.items():
        first = min(number for _, number in members)
        if first < 0 or first == max(number for _, number in members):
            continue
        collective = f"collective #{first + 1} of process group {group}" if group else _named(looks, first)
        for look, number in members:
            if number == first:
                behind.setdefault(look.rank, (look, f"{what.format(collective)}{others}{_where(look)}"))
            else:
                waiting.add(look.rank)
    return [BlockingRank(look, why) for rank, (look, why) in behind.items() if rank not in waiting]


def _named(looks: Sequence[RankStatus], first: int) -> str:
    """Return the name and number of the default group's collective number ``first + 1``."""
    return f"{_collective(looks, first)} #{first + 1}"


def _collective(looks: Iterable[RankStatus], first: int) -> str:
    """Return the collective that other ranks began after the ``first`` collectives that all ranks began."""
    for look in looks:
        place = first - look.sequence
        if place < 0 and -place <= len(look.collectives):
            return name_of(look.collectives[place])
    return "collective"


def _mismatched_collectives(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks that wait in a different collective although all ranks have begun the same number of collectives."""
    numbers = {look.sequence for look in looks}
    if len(numbers) != 1 or min(numbers) < 0 or not all(look.collectives for look in looks):
        return []
    orders = [look.collectives for look in looks]
    known = min(map(len, orders))
    orders = [order[-known:] for order in orders]
    at = next((place for place in range(known) if len({order[place] for order in orders}) > 1), None)
    if at is None:
        return []
    expected = _expected([order[at] for order in orders], orders[0][:at])
    number = looks[0].sequence - known + at + 1
    return [
        BlockingRank(
            look,
            f"entered {order[at]} where "
            + (f"{expected} was due" if expected else "others entered another")
            + f" as collective #{number}{_where(look)}",
        )
        for look, order in zip(looks, orders, strict=True)
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


def _outside_collectives(looks: Sequence[RankStatus]) -> list[BlockingRank]:
    """Name ranks that wait in no collective, if the program marks its sections."""
    if not all(look.section for look in looks):
        return []
    idle = [look for look in looks if not look.waits_in]
    waited_for = len(idle) < len(looks)
    return [BlockingRank(look, f"waits in no collective{_where(look)}", is_waited_for=waited_for) for look in idle]


RULES: Final[tuple[Callable[[Sequence[RankStatus]], list[BlockingRank]], ...]] = (
    _stopped,
    _gil_holders,
    _lagging_in_collective,
    _lagging_in_group,
    _mismatched_collectives,
    _lagging_on_gpu,
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


def _where(look: RankStatus) -> str:
    parts = [f"in section {look.section}" if look.section else "", f"at {look.place}" if look.place else ""]
    place = " ".join(part for part in parts if part)
    limit = "" if look.limit is None else f" (limit {look.limit:.1f} s)"
    return f"{f'; {place}' if place else ','} for {look.seconds:.1f} s{limit}"
