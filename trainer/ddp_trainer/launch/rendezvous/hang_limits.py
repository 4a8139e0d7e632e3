"""Time limits for a rank without progress, learned from the run and bounded below by a floor.

:class:`HangPolicy` has the settings, and :func:`policy_of` reads them. :class:`StepTimeHistory` has the observations of
one rank and returns its limits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.hanging import WARNING
from ddp_trainer.common.time_classes import Section
from ddp_trainer.launch.protocol.console import LaunchError

FACTOR: Final = 5.0
"""Limit as a multiple of the longest recent stay."""
RECENT: Final = 200
"""Number of recent stays per section that count."""
WARM_UP_MOVES: Final = 5
"""Number of first moves from which nothing is learned. Until then a rank may compile, connect, or read its data set."""

SCRIPT: Final = ""
"""Section of a rank that has reported none."""

FIRST_SECONDS: Final = 1800.0
"""Limit of the first steps before their duration is known, in seconds."""
FIRST_FLOORS: Final = 10.0
"""Limit of the first steps as a multiple of the floor, once workers of an earlier group have finished theirs."""
FIRST_FACTOR: Final = 5.0
"""Limit of the first steps as a multiple of the longest stay in those of earlier workers.

The larger of both limits applies. A group of another size may compile again.
"""

FLOORS: Final[Mapping[str, float]] = {
    SCRIPT: 600.0,
    Section.DATA: 60.0,
    Section.FORWARD: 60.0,
    Section.BACKWARD: 60.0,
    Section.OPTIMIZER: 60.0,
    Section.EVALUATION: 600.0,
    Section.CHECKPOINT: 600.0,
}
"""Lowest limit of each section, in seconds. A section that is not in the table has no limit."""

NOTICE_SECONDS: Final = 30.0
"""Least time before a rank that others wait for is reported, in seconds. It is killed later, at its limit."""
NOTICE_STAYS: Final = 20.0
"""Least time before the report, as a multiple of the rank's typical stay."""
NOTICE_LONGEST: Final = 1.5
"""Least time before the report, as a multiple of the longest recent stay. A pause in every epoch is then reported once.
"""

PATIENT: Final = frozenset({Section.EVALUATION, Section.CHECKPOINT})
"""Sections that take long by nature. ``--hang-floor`` can raise their floors but not lower them."""

BESIDE_STEPS: Final = PATIENT | {Section.SETUP}
"""Sections that most steps do not have."""


class OnHang(StrEnum):
    """Reaction to a rank that the others wait for in vain."""

    OFF = "off"
    WARN = "warn"
    """Report it, with the stacks of all ranks."""
    ACT = "act"
    """Also kill it, so that the group re-forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangPolicy:
    """Settings of ``--on-hang`` and ``--hang-floor``."""

    on_hang: OnHang = OnHang.WARN
    floor: float | None = None
    """Lowest limit in seconds; :data:`FLOORS` applies if None."""

    def floor_of(self, section: str) -> float | None:
        """Return the lowest limit of a section in seconds; None if it has no limit."""
        known = FLOORS.get(section)
        if known is None or self.floor is None:
            return known
        return max(known, self.floor) if section in PATIENT else self.floor

    @property
    def poll_interval_seconds(self) -> float:
        """Interval between observations of the ranks, in seconds: a twentieth of the lowest limit, from 0.05 to 0.5."""
        shortest = min(FLOORS.values()) if self.floor is None else self.floor
        return min(0.5, max(0.05, shortest / 20))


def policy_of(on_hang: str, floor: str, environ: Mapping[str, str]) -> HangPolicy:
    """Read the hang policy from flags, else from the environment. Raises LaunchError for an invalid value."""
    word = on_hang or environ.get(Env.ON_HANG, "") or OnHang.WARN
    if word not in list(OnHang):
        setting = f"--on-hang {word!r}" if on_hang else f"{Env.ON_HANG}={word!r}"
        raise LaunchError(f"{setting} is none of {', '.join(OnHang)}.")
    text = floor or environ.get(Env.HANG_FLOOR, "")
    if not text:
        return HangPolicy(on_hang=OnHang(word))
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) or not float(text):
        setting = f"--hang-floor {text!r}" if floor else f"{Env.HANG_FLOOR}={text!r}"
        raise LaunchError(f"{setting} is not a number of seconds above 0.")
    return HangPolicy(on_hang=OnHang(word), floor=float(text))


@dataclass(slots=True)
class StepTimeHistory:
    """Observed stays of one rank, by section. A stay is the time between two moves."""

    policy: HangPolicy
    first: float | None = None
    """Longest stay in the first steps of earlier workers, in seconds. None if no worker has finished its first steps.
    """
    moves: int = 0
    """Number of observations since the start that found the rank at another place than the one before."""
    durations: dict[str, deque[float]] = field(default_factory=dict)
    longest_first: float = 0.0
    """Longest stay in the rank's own first steps, in seconds."""
    is_closed: bool = False
    """True if learning has ended."""

    def moved(self, section: str, seconds: float) -> None:
        """Record a move of the rank after ``seconds`` in ``section``."""
        if self.is_closed:
            return
        self.moves += 1
        if self.moves > WARM_UP_MOVES:
            self.durations.setdefault(section, deque(maxlen=RECENT)).append(seconds)
        else:
            self.longest_first = max(self.longest_first, seconds)

    @property
    def is_warmup_done(self) -> bool:
        """True if the rank has finished its first steps, so that its stays are typical."""
        return self.moves >= WARM_UP_MOVES

    def longest(self, section: str) -> float | None:
        """Return the longest recent stay in ``section``, in seconds; None if there is none."""
        return max(self.durations.get(section, ()), default=None)

    def longest_step(self, section: str = SCRIPT) -> float | None:
        """Return the longest step in seconds, estimated from recent stays; None if nothing has been learned.

        Args:
            section: Current section of the rank. It counts even if most steps do not have it.
        """
        longest = [
            max(durations) for name, durations in self.durations.items() if name == section or name not in BESIDE_STEPS
        ]
        is_known = longest and (section not in PATIENT or section in self.durations)
        return sum(longest) if is_known else None

    def report_after_seconds(self, section: str) -> float | None:
        """Return the seconds after which a rank in ``section`` is reported if others wait for it; None for never."""
        limit = self.limit(section)
        if limit is None or section in PATIENT:
            return None if limit is None else WARNING * limit
        durations = sorted(self.durations.get(section, ())) or [0.0]
        typical, longest = durations[len(durations) // 2], durations[-1]
        return min(WARNING * limit, max(NOTICE_SECONDS, NOTICE_STAYS * typical, NOTICE_LONGEST * longest))

    def limit(self, section: str, *, is_stopped: bool = False) -> float | None:
        """Return the longest permitted stay in ``section``, in seconds; None for unlimited.

        Args:
            section: Current section of the rank.
            is_stopped: Whether a signal has stopped the process. The limit of the first steps does not apply then.
        """
        floor = self.policy.floor_of(section)
        if floor is None:
            return None
        if not self.is_warmup_done and not is_stopped:
            known = FIRST_SECONDS if self.first is None else max(FIRST_FLOORS * floor, FIRST_FACTOR * self.first)
            return max(floor, min(FIRST_SECONDS, known))
        return max(floor, FACTOR * max(self.durations.get(section, ()), default=0.0))
