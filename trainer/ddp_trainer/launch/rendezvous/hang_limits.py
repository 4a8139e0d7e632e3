"""How long a rank may stay where it is: learned from the run itself, and never less than a floor."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ddp_trainer.common.constants import Env, Section
from ddp_trainer.common.hanging.look import WARNING
from ddp_trainer.launch.protocol.errors import LaunchError

FACTOR: Final = 5.0
"""A limit is so many times the longest recent stay."""
RECENT: Final = 200
"""Stays that are remembered."""
WARM_UP_MOVES: Final = 5
"""Before so many looks have seen a rank move, it may still be compiling, connecting, or reading its data set; nothing
is learned from these."""

SCRIPT: Final = ""
"""Where a rank is that has told no section."""

FIRST_SECONDS: Final = 1800.0
"""The limit of the first steps, where nothing is known of them."""
FIRST_FLOORS: Final = 10.0
"""Once the workers of an earlier group are past theirs, the first steps have so many floors,"""
FIRST_FACTOR: Final = 5.0
"""or so many times the longest stay of those; a group of another size may compile anew."""

FLOORS: Final[Mapping[str, float]] = {
    SCRIPT: 600.0,
    Section.DATA: 60.0,
    Section.FORWARD: 60.0,
    Section.BACKWARD: 60.0,
    Section.OPTIMIZER: 60.0,
    Section.EVALUATION: 600.0,
    Section.CHECKPOINT: 600.0,
}
"""Seconds, the least that each limit can be. A section that is not here has none."""

NOTICE_SECONDS: Final = 30.0
"""A rank that others wait for is reported no earlier than this. It is killed at its limit, which is longer."""
NOTICE_STAYS: Final = 20.0
"""A rank is reported no earlier than so many of its typical stays,"""
NOTICE_LONGEST: Final = 1.5
"""nor than so many times its longest recent one: a pause that comes with every epoch is reported once."""

PATIENT: Final = frozenset({Section.EVALUATION, Section.CHECKPOINT})
"""Sections that take long by their nature; ``--hang-floor`` can raise their floors, and not lower them."""

BESIDE_STEPS: Final = PATIENT | {Section.SETUP}
"""Sections that are no part of most steps."""


class OnHang(StrEnum):
    """What to do about a rank that the others wait for in vain."""

    OFF = "off"
    WARN = "warn"
    """Name it, with the stacks of all ranks."""
    ACT = "act"
    """Also kill it, so that the group is formed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangPolicy:
    """What ``--on-hang`` and ``--hang-floor`` say."""

    on_hang: OnHang = OnHang.WARN
    floor: float | None = None
    """Seconds; the table's when None."""

    def floor_of(self, section: str) -> float | None:
        """The least limit of a section; None where a rank may stay for ever."""
        known = FLOORS.get(section)
        if known is None or self.floor is None:
            return known
        return max(known, self.floor) if section in PATIENT else self.floor

    @property
    def look_seconds(self) -> float:
        """How often ranks are looked at: often enough for the shortest limit there can be."""
        shortest = min(FLOORS.values()) if self.floor is None else self.floor
        return min(0.5, max(0.05, shortest / 20))


def policy_of(on_hang: str, floor: str, environ: Mapping[str, str]) -> HangPolicy:
    """From flags, else the environment. Raises LaunchError for a word or a number that cannot be meant."""
    word = on_hang or environ.get(Env.ON_HANG, "") or OnHang.WARN
    if word not in list(OnHang):
        told = f"--on-hang {word!r}" if on_hang else f"{Env.ON_HANG}={word!r}"
        raise LaunchError(f"{told} is none of {', '.join(OnHang)}.")
    text = floor or environ.get(Env.HANG_FLOOR, "")
    if not text:
        return HangPolicy(on_hang=OnHang(word))
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) or not float(text):
        told = f"--hang-floor {text!r}" if floor else f"{Env.HANG_FLOOR}={text!r}"
        raise LaunchError(f"{told} is no number of seconds above 0.")
    return HangPolicy(on_hang=OnHang(word), floor=float(text))


@dataclass(slots=True)
class StepTimeHistory:
    """What is known about one rank's stays, by section."""

    policy: HangPolicy
    first: float | None = None
    """Seconds of the longest stay in the first steps of earlier workers; None where none came past theirs."""
    moves: int = 0
    """Looks that found it elsewhere than the one before, since it began."""
    stays: dict[str, deque[float]] = field(default_factory=dict)
    longest_first: float = 0.0
    """Seconds of the longest stay in its own first steps."""
    is_closed: bool = False
    """Nothing is learned any more."""

    def moved(self, section: str, seconds: float) -> None:
        """It has moved, for the first time in ``seconds``, which it spent in ``section``."""
        if self.is_closed:
            return
        self.moves += 1
        if self.moves > WARM_UP_MOVES:
            self.stays.setdefault(section, deque(maxlen=RECENT)).append(seconds)
        else:
            self.longest_first = max(self.longest_first, seconds)

    @property
    def is_past_first_steps(self) -> bool:
        """Whether what it does now tells how long it usually takes."""
        return self.moves >= WARM_UP_MOVES

    def longest(self, section: str) -> float | None:
        """Seconds of its longest recent stay in ``section``; None where nothing has been learned."""
        return max(self.stays.get(section, ()), default=None)

    def longest_step(self, section: str = SCRIPT) -> float | None:
        """Seconds of the longest step, as far as recent stays tell; None where nothing has been learned.

        What is no part of most steps counts where the rank is in it just now, which is ``section``.
        """
        longest = [max(stays) for name, stays in self.stays.items() if name == section or name not in BESIDE_STEPS]
        is_known = longest and (section not in PATIENT or section in self.stays)
        return sum(longest) if is_known else None

    def notice(self, section: str) -> float | None:
        """Return the seconds after which a rank in ``section`` is reported if others wait for it; None for never."""
        limit = self.limit(section)
        if limit is None or section in PATIENT:
            return None if limit is None else WARNING * limit
        stays = sorted(self.stays.get(section, ())) or [0.0]
        typical, longest = stays[len(stays) // 2], stays[-1]
        return min(WARNING * limit, max(NOTICE_SECONDS, NOTICE_STAYS * typical, NOTICE_LONGEST * longest))

    def limit(self, section: str, *, is_stopped: bool = False) -> float | None:
        """Seconds that it may stay in ``section``; None where it may stay for ever.

        A process that a signal has stopped is not busy with its first steps.
        """
        floor = self.policy.floor_of(section)
        if floor is None:
            return None
        if not self.is_past_first_steps and not is_stopped:
            known = FIRST_SECONDS if self.first is None else max(FIRST_FLOORS * floor, FIRST_FACTOR * self.first)
            return max(floor, min(FIRST_SECONDS, known))
        return max(floor, FACTOR * max(self.stays.get(section, ()), default=0.0))
