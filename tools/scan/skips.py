"""``skips.toml``: which checks are not for us, and why."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("skips.toml")


@dataclass(frozen=True, slots=True)
class Skip:
    """One check that does not hold for some objects."""

    check: str
    objects: str
    """A regular expression over ``KIND/NAME``."""
    reason: str

    def matches(self, failure: Failure) -> bool:
        """Return whether it allows this failure."""
        return self.check == failure.check and re.fullmatch(self.objects, failure.item) is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that one object does not pass."""

    check: str
    name: str
    item: str
    """``KIND/NAME``."""
    source: str


def read_skips(file: Path = FILE) -> list[Skip]:
    """Every row of the file."""
    return [Skip(**row) for row in tomllib.loads(file.read_text())["skip"]]


def check_skips(failures: list[Failure], skips: list[Skip]) -> list[str]:
    """A line for each failure that no row covers, and for each row that covers nothing or has no reason."""
    problems = [
        f"{failure.check} ({failure.name}): {failure.item} in {failure.source}"
        for failure in failures
        if not any(skip.matches(failure) for skip in skips)
    ]
    idle = [skip for skip in skips if not any(skip.matches(failure) for failure in failures)]
    problems += [f"{skip.check} of {skip.objects} in {FILE.name} meets nothing; take the row out" for skip in idle]
    return problems + [
        f"{skip.check} of {skip.objects} in {FILE.name} has no reason" for skip in skips if not skip.reason
    ]
