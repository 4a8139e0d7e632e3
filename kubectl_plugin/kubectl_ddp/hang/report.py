"""Result of ``kubectl ddp hang``: job state, verdict, snapshot, and the hang that ended a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddp_trainer.common.constants import FailureReason
from kubectl_ddp.hang.analysis import HANGING, HangState, Verdict
from kubectl_ddp.hang.collector import HangSnapshot, RankReport
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.status.termination_message import FirstError

HANG_CODE: Final = 14
"""Exit code for a job that hangs, the same as in ``why``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangReport:
    """Result of one call of the command."""

    state: JobState
    sight: HangSnapshot
    verdict: Verdict
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
        return self.verdict.answer in HANGING or (self.state.is_terminal and self.ended is not None)

    @property
    def code(self) -> int:
        """Exit code: 14 if the job hangs or a hang has ended it, else 0."""
        return HANG_CODE if self.is_hung else 0

    @property
    def culprits(self) -> tuple[tuple[RankReport, str], ...]:
        """Blocking ranks, each with a message about it."""
        seen = {rank.look.rank: rank for rank in self.sight.ranks}
        return tuple((seen[each.look.rank], each.message) for each in self.verdict.culprits)

    @property
    def message(self) -> str:
        """Verdict in one sentence."""
        answer = self.verdict.answer
        if answer is HangState.HANGS:
            return f"It hangs: {'; '.join(sentence for _, sentence in self.culprits)}."
        if answer in {HangState.STUCK, HangState.SILENT}:
            return f"It hangs: {self.verdict.message}."
        if answer is HangState.MOVES:
            return f"It does not hang: {_moving(len(self.sight.ranks))}."
        if answer is HangState.STANDS:
            return f"No rank is waited for by all others, as far as can be seen: {self.verdict.message}."
        return self._no_ranks_message()

    def _no_ranks_message(self) -> str:
        if self.ended is not None and self.state.is_terminal:
            return f"It hung, and has ended by that: {self.ended.message.rstrip('.')}."
        if self.state.is_terminal:
            return "It is over, and did not hang."
        if any(pod.on_hang == "off" for pod in self.sight.pods):
            return "Hang detection is off: the job runs with --on-hang off."
        if self.sight.silent:
            return f"None of its pods shows its ranks: {next(iter(self.sight.silent.values()))}"
        if self.sight.pods:
            return "No rank runs just now: its workers start, stop, or have ended."
        return f"No pod of it runs just now; it is {self.state.state}."


def _moving(ranks: int) -> str:
    return "its one rank moves" if ranks == 1 else f"all {ranks} ranks move"
