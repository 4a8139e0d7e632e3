"""Does it hang, and who is it? From two or more looks; pure.

The launcher waits for the limit that it has learned, minutes as a rule, before it names anybody, since it may kill. Who
asks has a doubt already and kills nobody: here a rank stands still when it has not moved for thrice its longest recent
stay, and five seconds at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.common.hanging.diagnosis import BlockingRank, all_waiting_message, find_culprits
from ddp_trainer.common.hanging.rank_status import RankStatus
from kubectl_ddp.hang.collector import HangSnapshot, RankReport

LEAST_SECONDS: Final = 5.0
TIMES: Final = 3.0
UNLEARNED_SECONDS: Final = 10.0
"""Of a rank whose steps are not known yet: it may compile, connect, or read its data set."""
LAG_SECONDS: Final = 2.5
"""So long after a rank has moved a launcher may see it: the rank says so four times a second, on a machine that may be
loaded, and the launcher looks twice a second."""
SILENT_SECONDS: Final = 8.0
"""So long a pod that shows nothing is asked again."""
MOST_SECONDS: Final = 25.0
"""Longer nobody is waited for who has a doubt."""


class HangState(StrEnum):
    """What can be said."""

    HANGS = "hangs"
    """And the ranks that are waited for are known."""
    STUCK = "stuck"
    """All wait in one and the same collective: no rank is the cause."""
    SILENT = "silent"
    """The ranks that can be seen wait, and others cannot be seen."""
    MOVES = "moves"
    STANDS = "stands"
    """Ranks stand still, and nothing tells that others wait for them."""
    UNSEEN = "unseen"
    """No launcher shows any rank."""


HANGING: Final = frozenset({HangState.HANGS, HangState.STUCK, HangState.SILENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, and who."""

    answer: HangState
    culprits: tuple[BlockingRank, ...] = ()
    message: str = ""
    """Where there is no culprit to speak for it."""
    still: tuple[int, ...] = ()
    """Ranks that stand still."""


def hang_threshold(rank: RankReport) -> float:
    """Seconds after which a rank that has not moved counts as standing still."""
    usual = UNLEARNED_SECONDS if rank.usual is None else TIMES * rank.usual
    return min(MOST_SECONDS, max(LEAST_SECONDS, usual))


def analyze(sight: HangSnapshot) -> Verdict | None:
    """What one look tells; None where it takes another, later one."""
    ranks = sight.ranks
    if not ranks:
        return Verdict(answer=HangState.UNSEEN)
    limits = {rank.look.rank: hang_threshold(rank) for rank in ranks}

    def is_stalled(look: RankStatus) -> bool:
        return look.seconds >= limits[look.rank]

    looks = [rank.look for rank in ranks]
    still = tuple(look.rank for look in looks if is_stalled(look))
    if len(still) < len(looks):
        return None
    if named := find_culprits(looks, is_stalled):
        return Verdict(answer=HangState.HANGS, culprits=tuple(named), still=still)
    if sight.silent:
        return Verdict(answer=HangState.SILENT, message=_unresponsive_message(sight, looks), still=still)
    if sentence := all_waiting_message(looks, is_stalled):
        return Verdict(answer=HangState.STUCK, message=sentence, still=still)
    return Verdict(answer=HangState.STANDS, message=_no_progress_message(looks), still=still)


def is_final(verdict: Verdict, sight: HangSnapshot, elapsed: float) -> bool:
    """Whether nothing else can be expected; a pod on a loaded machine may answer when it is asked again."""
    waits_for_pods = verdict.answer in {HangState.UNSEEN, HangState.SILENT} and sight.silent
    return not waits_for_pods or elapsed >= SILENT_SECONDS


def have_moved(before: HangSnapshot, now: HangSnapshot, elapsed: float) -> bool:
    """Whether every rank that was seen has moved since, so many seconds ago, and not only been seen to."""
    seen = {rank.look.rank: rank.look for rank in now.ranks}
    return bool(before.ranks) and all(
        (look := seen.get(rank.look.rank)) is not None and look.seconds < elapsed - LAG_SECONDS for rank in before.ranks
    )


def timeout_verdict(sight: HangSnapshot) -> Verdict:
    """When there is no more time to look: some ranks move, so what stands still is slow, or nobody's to wait for."""
    still = tuple(rank.look.rank for rank in sight.ranks if rank.look.seconds >= hang_threshold(rank))
    if not still:
        return Verdict(answer=HangState.MOVES)
    looks = [rank.look for rank in sight.ranks if rank.look.rank in still]
    return Verdict(answer=HangState.STANDS, message=f"{_no_progress_message(looks)}, and others move", still=still)


def _no_progress_message(looks: Sequence[RankStatus]) -> str:
    numbers = ", ".join(str(look.rank) for look in looks[:8]) + ", ..." * (len(looks) > 8)
    subject = f"rank {numbers} stands" if len(looks) == 1 else f"ranks {numbers} stand"
    return f"{subject} still for {min(look.seconds for look in looks):.1f} s"


def _unresponsive_message(sight: HangSnapshot, looks: Sequence[RankStatus]) -> str:
    pods = ", ".join(sorted(sight.silent))
    return f"{_no_progress_message(looks)}, and pod {pods} does not show its ranks: they may be waited for"
