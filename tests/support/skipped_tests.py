"""``python -m tests.support.skipped_tests FILE``: count the tests that ``make test`` has skipped, by reason.

Each run of pytest appends the reasons of its skipped tests to the file that ``DDP_TEST_SKIPPED`` names.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "DDP_TEST_SKIPPED"
MOST_REASONS: Final = 5


def note_skipped(reports: Iterable[Any]) -> None:
    """Append the reason of each skipped test, one a line, if the variable names a file."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ").replace("\n", " ") for report in reports]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a") as file:
        file.write("".join(f"{reason}\n" for reason in reasons))


def describe_skipped(reasons: Iterable[str]) -> str:
    """Return how many tests were skipped and why, the most frequent reasons first.

    >>> describe_skipped(["no cluster", "no browser", "no cluster"])
    'make test: 3 tests were skipped: 2 (no cluster), 1 (no browser).'
    """
    counts = Counter(reasons)
    if not counts:
        return "make test: no test was skipped."
    parts = [f"{count} ({reason.rstrip('.')})" for reason, count in counts.most_common(MOST_REASONS)]
    if left := counts.total() - sum(count for _, count in counts.most_common(MOST_REASONS)):
        parts.append(f"{left} for other reasons")
    noun = "test was" if counts.total() == 1 else "tests were"
    return f"make test: {counts.total()} {noun} skipped: {', '.join(parts)}."


if __name__ == "__main__":
    path = Path(sys.argv[1])
    print(describe_skipped(path.read_text().splitlines() if path.exists() else ()))
