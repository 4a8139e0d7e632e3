"""Verdict on a hang from two or more snapshots, and the result of ``kubectl ddp hang``; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.common.hanging import BlockingRank, RankStatus, all_waiting_message, find_culprits
from kubectl_ddp.hang.collector import HangSnapshot, RankReport
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.status.termination_message import FirstError

LEAST_SECONDS: Final = 5.0
TIMES: Final = 3.0
UNLEARNED_SECONDS: Final = 10.0
"""Limit for a rank whose step times are unknown: it may be compiling, connecting, or reading its data set."""
LAG_SECONDS: Final = 2.5
"""Delay until a launcher notices that a rank has moved.

A rank reports four times a second, on a possibly loaded machine, and the launcher reads twice a second.
"""
SILENT_SECONDS: Final = 8.0
"""Duration of retries for a pod that shows no ranks."""
MOST_SECONDS: Final = 25.0
"""Upper bound of the stall threshold."""


class HangState(StrEnum):
    """Outcome of the analysis."""

    HANGS = "hangs"
    """Ranks hang, and the blocking ranks are known."""
    STUCK = "stuck"
    """All ranks wait in the same collective; no rank is the cause."""
    SILENT = "silent"
    """All visible ranks wait, and some ranks are not visible."""
    MOVES = "moves"
    STALLED = "stalled"
    """Ranks are stalled, but nothing shows that others wait for them."""
    UNSEEN = "unseen"
    """No launcher shows a rank."""


HANGING: Final = frozenset({HangState.HANGS, HangState.STUCK, HangState.SILENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class HangAnalysis:
    """Result of the analysis, with the blocking ranks."""

    answer: HangState
    culprits: tuple[BlockingRank, ...] = ()
    message: str = ""
    """Explanation if the verdict names no culprits."""
    still: tuple[int, ...] = ()
    """Stalled ranks."""


def hang_threshold(rank: RankReport) -> float:
    """Return the seconds without movement after which a rank counts as stalled."""
    usual = UNLEARNED_SECONDS if rank.usual is None else TIMES * rank.usual
    return min(MOST_SECONDS, max(LEAST_SECONDS, usual))


def analyze(hang_snapshot: HangSnapshot) -> HangAnalysis | None:
    """Return the verdict of one snapshot, or None if another, later snapshot is needed."""
    ranks = hang_snapshot.ranks
    if not ranks:
        return HangAnalysis(answer=HangState.UNSEEN)
    limits = {rank.status.rank: hang_threshold(rank) for rank in ranks}

    def is_stalled(status: RankStatus) -> bool:
        return status.seconds >= limits[status.rank]

    statuses = [rank.status for rank in ranks]
    still = tuple(status.rank for status in statuses if is_stalled(status))
    if len(still) < len(statuses):
        return None
    if named := find_culprits(statuses, is_stalled):
        return HangAnalysis(answer=HangState.HANGS, culprits=tuple(named), still=still)
    if hang_snapshot.silent:
        return HangAnalysis(answer=HangState.SILENT, message=_silent_pods_message(hang_snapshot, statuses), still=still)
    if sentence := all_waiting_message(statuses, is_stalled):
        return HangAnalysis(answer=HangState.STUCK, message=sentence, still=still)
    return HangAnalysis(answer=HangState.STALLED, message=_no_progress_message(statuses), still=still)


def is_final(analysis: HangAnalysis, hang_snapshot: HangSnapshot, elapsed: float) -> bool:
    """Return True if further snapshots would not change the verdict; a pod on a loaded machine may answer a retry."""
    waits_for_pods = analysis.answer in {HangState.UNSEEN, HangState.SILENT} and hang_snapshot.silent
    return not waits_for_pods or elapsed >= SILENT_SECONDS


def have_moved(before: HangSnapshot, now: HangSnapshot, elapsed: float) -> bool:
    """Return True if every rank of ``before`` has moved since then; allows for the delay of reports."""
    seen = {rank.status.rank: rank.status for rank in now.ranks}
    return bool(before.ranks) and all(
        (status := seen.get(rank.status.rank)) is not None and status.seconds < elapsed - LAG_SECONDS
        for rank in before.ranks
    )


def timeout_analysis(hang_snapshot: HangSnapshot) -> HangAnalysis:
    """Return the verdict at the end of the observation: other ranks move, so a stalled rank is slow or blocks none."""
    still = tuple(rank.status.rank for rank in hang_snapshot.ranks if rank.status.seconds >= hang_threshold(rank))
    if not still:
        return HangAnalysis(answer=HangState.MOVES)
    statuses = [rank.status for rank in hang_snapshot.ranks if rank.status.rank in still]
    return HangAnalysis(
        answer=HangState.STALLED, message=f"{_no_progress_message(statuses)}, and others move", still=still
    )


def _no_progress_message(statuses: Sequence[RankStatus]) -> str:
    numbers = ", ".join(str(status.rank) for status in statuses[:8]) + ", ..." * (len(statuses) > 8)
    subject = f"rank {numbers} has" if len(statuses) == 1 else f"ranks {numbers} have"
    return f"{subject} made no progress for {min(status.seconds for status in statuses):.1f} s"


def _silent_pods_message(hang_snapshot: HangSnapshot, statuses: Sequence[RankStatus]) -> str:
    pods = ", ".join(sorted(hang_snapshot.silent))
    return f"{_no_progress_message(statuses)}, and pod {pods} does not show its ranks: they may be waited for"


HANG_CODE: Final = 14
"""Exit code for a job that hangs, the same as in ``why``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangReport:
    """Result of one call of the command."""

    state: JobState
    hang_snapshot: HangSnapshot
    analysis: HangAnalysis
    now: float
    """Unix time."""
    stacks_missing: str = ""
    """Reason for missing stacks."""

    @property
    def ended(self) -> FirstError | None:
        """Hang that ended the run or one of its worker groups, as recorded by its launcher, with the stack."""
        error = self.state.first_error
        return error if error is not None and error.reason == FailureReason.HANG else None

    @property
    def is_hung(self) -> bool:
        """True if the job hangs now or a hang has ended it."""
        return self.analysis.answer in HANGING or (self.state.is_terminal and self.ended is not None)

    @property
    def code(self) -> int:
        """Exit code: 14 if the job hangs or a hang has ended it, else 0."""
        return HANG_CODE if self.is_hung else 0

    @property
    def culprits(self) -> tuple[tuple[RankReport, str], ...]:
        """Blocking ranks, each with a message about it."""
        seen = {rank.status.rank: rank for rank in self.hang_snapshot.ranks}
        return tuple((seen[culprit.status.rank], culprit.message) for culprit in self.analysis.culprits)

    @property
    def message(self) -> str:
        """Verdict in one sentence."""
        answer = self.analysis.answer
        if answer is HangState.HANGS:
            return f"It hangs: {'; '.join(sentence for _, sentence in self.culprits)}."
        if answer in {HangState.STUCK, HangState.SILENT}:
            return f"It hangs: {self.analysis.message}."
        if answer is HangState.MOVES:
            return f"It does not hang: {_moving(len(self.hang_snapshot.ranks))}."
        if answer is HangState.STALLED:
            return f"No rank is waited for by all others, as far as can be seen: {self.analysis.message}."
        return self._no_ranks_message()

    def _no_ranks_message(self) -> str:
        if self.ended is not None and self.state.is_terminal:
            return f"It hung, and has ended by that: {self.ended.message.rstrip('.')}."
        if self.state.is_terminal:
            return "It is over, and did not hang."
        if any(pod.on_hang == "off" for pod in self.hang_snapshot.pods):
            return "Hang detection is off: the job runs with --on-hang off."
        if self.hang_snapshot.silent:
            return f"None of its pods shows its ranks: {next(iter(self.hang_snapshot.silent.values()))}"
        if self.hang_snapshot.pods:
            return "No rank runs just now: its workers start, stop, or have ended."
        return f"No pod of it runs just now; it is {self.state.state}."


def _moving(ranks: int) -> str:
    return "its one rank moves" if ranks == 1 else f"all {ranks} ranks move"
