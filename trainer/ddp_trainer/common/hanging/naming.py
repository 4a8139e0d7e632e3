"""Who is it that the others wait for? Pure: from how all ranks look to names and reasons.

::

    somebody is in a debugger            nobody: a person is at work
    stopped by a signal                  those
    holds the GIL                        those
    fewer collectives than the others    those that began the fewest
    fewer in another group               those that began the fewest there, and wait for nobody elsewhere
    as many, but not the same ones       those whose order is unlike the others', or unlike what it was before
    fewer on the GPU                     those with the fewest kernels started, or over, if others are further
    not waiting in a collective          those, where a program tells its sections; if all are, nobody is killed

A rank that moves is a slow one and is never named, and while any rank moves, nobody hangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_trainer.common.constants import Section
from ddp_trainer.common.hanging.look import Look, RankState, is_long


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank, and what tells it from the others."""

    look: Look
    why: str
    """Goes on from ``rank 3 on worker-1``."""
    is_waited_for: bool = True
    """By another rank, as far as can be seen."""

    @property
    def may_be_killed(self) -> bool:
        """Nobody is killed for a checkpoint that takes long; one that is stopped will not finish it."""
        is_saving = self.look.section == Section.CHECKPOINT and self.look.state is not RankState.STOPPED
        return self.is_waited_for and not is_saving

    @property
    def sentence(self) -> str:
        """Who, and why."""
        return f"rank {self.look.rank} on {self.look.node} {self.why}"


Judgement = Callable[[Look], bool]
"""Whether a rank has stood still for so long that it may hang."""


def culprits(looks: Sequence[Look], stands_still: Judgement = is_long) -> list[Culprit]:
    """Those that stand still and that everybody waits for; empty where that cannot be said."""
    if any(look.state is RankState.TRACED for look in looks):
        return []
    looks = _at_work(looks)
    named = next((found for rule in RULES if (found := rule(looks))), [])
    overdue = [culprit for culprit in named if stands_still(culprit.look)]
    if not overdue:
        return []
    # Who waits came later than who is waited for, but not by much: else it was busy with something of its own.
    since = max(culprit.look.seconds for culprit in overdue)
    return overdue if all(look.seconds > since / 2 for look in looks) else []


def nobody_missing(looks: Sequence[Look], stands_still: Judgement = is_long) -> str:
    """A sentence where all ranks have long been waiting in one and the same collective; else nothing."""
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


def _at_work(looks: Sequence[Look]) -> list[Look]:
    return [look for look in looks if look.section != Section.ASIDE]


def _stopped(looks: Sequence[Look]) -> list[Culprit]:
    found = [look for look in looks if look.state is RankState.STOPPED]
    return [Culprit(look=look, why=f"is stopped by a signal (state T){_where(look)}") for look in found]


def _deaf(looks: Sequence[Look]) -> list[Culprit]:
    found = [look for look in looks if look.state is RankState.DEAF]
    return [
        Culprit(look=look, why=f"holds the GIL: no thread of Python gets a turn{_after(look)}{_where(look)}")
        for look in found
    ]


def _after(look: Look) -> str:
    """How far it is, as torch's own threads tell."""
    if look.sequence < 0:
        return ""
    begun = name_of(look.collectives[-1]) if look.collectives else "collective"
    return f" since it began {begun} #{look.sequence}" if look.sequence else " before its first collective"


def _behind(looks: Sequence[Look]) -> list[Culprit]:
    numbers = [look.sequence for look in looks]
    first, last = min(numbers, default=-1), max(numbers, default=-1)
    if first < 0 or first == last:
        return []
    missed = _named(looks, first)
    # Who waits for a rank of another group is behind here for want of that one.
    elsewhere = {culprit.look.rank for culprit in _behind_in_group(looks)}
    behind = [look for look in looks if look.sequence == first]
    behind = [look for look in behind if look.rank in elsewhere] or behind
    return [Culprit(look=look, why=f"did not enter {missed}{_where(look)}") for look in behind]


def _behind_in_group(looks: Sequence[Look]) -> list[Culprit]:
    """By the collectives of each process group that its ranks have begun."""
    return _lagging(looks, "enqueued", "did not enter {}", "")


def _behind_on_gpu(looks: Sequence[Look]) -> list[Culprit]:
    """All hosts have begun as many collectives: NCCL's are only enqueued then, and the GPUs may be less far.

    Which kernels have started is known with ``TORCH_NCCL_ENABLE_TIMING=1``. Which are over says less: one of a ring
    may be over on some ranks when a link breaks. So it names a minority alone.
    """
    started = _lagging(looks, "started", "has not started {} on its GPU", ", which others wait in")
    if started:
        return started
    unfinished = _lagging(looks, "completed", "has not completed {} on its GPU", ", which others have")
    return unfinished if 2 * len(unfinished) < len(looks) else []


def _lagging(looks: Sequence[Look], count: str, what: str, others: str) -> list[Culprit]:
    """Ranks with the fewest of a count in a group; who is ahead of another rank in any group waits for that one."""
    groups: dict[str, list[tuple[Look, int]]] = {}
    for look in looks:
        for position in look.positions:
            groups.setdefault(position.group, []).append((look, getattr(position, count)))
    behind: dict[int, tuple[Look, str]] = {}
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
    return [Culprit(look=look, why=why) for rank, (look, why) in behind.items() if rank not in waiting]


def _named(looks: Sequence[Look], first: int) -> str:
    """The collective of the default group after the first ones."""
    return f"{_collective(looks, first)} #{first + 1}"


def _collective(looks: Iterable[Look], first: int) -> str:
    """What the others began after the ``first`` collectives that all began."""
    for look in looks:
        place = first - look.sequence
        if place < 0 and -place <= len(look.collectives):
            return name_of(look.collectives[place])
    return "collective"


def _unlike(looks: Sequence[Look]) -> list[Culprit]:
    """All have begun as many collectives, and all wait, so they are not in the same one."""
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
        Culprit(
            look=look,
            why=f"entered {order[at]} where "
            + (f"{expected} was due" if expected else "others entered another")
            + f" as collective #{number}{_where(look)}",
        )
        for look, order in zip(looks, orders, strict=True)
        if order[at] != expected
    ]


def _expected(entered: Sequence[str], before: Sequence[str]) -> str:
    """What most ranks entered; without a most, what followed the same collectives before; empty if neither tells."""
    counts = Counter(entered).most_common(2)
    if len(counts) == 1 or counts[0][1] > counts[1][1]:
        return counts[0][0]
    for context in range(min(len(before), 32), 0, -1):
        tail = before[-context:]
        for end in range(len(before) - 1, context - 1, -1):
            if before[end - context : end] == tail and before[end] in entered:
                return before[end]
    return ""


def _lingering(looks: Sequence[Look]) -> list[Culprit]:
    """No collective tells: those that wait in none, of a program that tells its sections."""
    if not all(look.section for look in looks):
        return []
    idle = [look for look in looks if not look.waits_in]
    waited_for = len(idle) < len(looks)
    return [Culprit(look=look, why=f"waits in no collective{_where(look)}", is_waited_for=waited_for) for look in idle]


RULES: Final[tuple[Callable[[Sequence[Look]], list[Culprit]], ...]] = (
    _stopped,
    _deaf,
    _behind,
    _behind_in_group,
    _unlike,
    _behind_on_gpu,
    _lingering,
)
"""The first that names anybody is believed."""


def name_of(collective: str) -> str:
    """Without the shapes.

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


def _where(look: Look) -> str:
    parts = [f"in section {look.section}" if look.section else "", f"at {look.place}" if look.place else ""]
    place = " ".join(part for part in parts if part)
    limit = "" if look.limit is None else f" (limit {look.limit:.1f} s)"
    return f"{f'; {place}' if place else ','} for {look.seconds:.1f} s{limit}"
