"""Which files stay behind: patterns as git's documentation of ``.gitignore`` has them.

Each directory may hold a ``.gitignore`` and a ``.ddpignore``; the latter has the last word. What lies in a directory
that stays behind stays behind too, whatever is said of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FILES: Final = (".gitignore", ".ddpignore")
"""In the order in which they are read: what comes later wins."""

ALWAYS: Final = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/",
    ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""What no job wants; a ``!`` in one of the files brings it back."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line."""

    expression: re.Pattern[str]
    """Matches paths below the directory of the file, with slashes."""
    base: str
    """That directory, below the one that is packed; empty, or with a slash at its end."""
    is_negated: bool
    """Whether what matches is taken along after all."""
    is_for_directories: bool

    def matches(self, path: str, *, is_directory: bool) -> bool:
        """Whether it speaks of a path below the directory that is packed."""
        if self.is_for_directories and not is_directory:
            return False
        return path.startswith(self.base) and self.expression.fullmatch(path[len(self.base) :]) is not None


def read(text: str, base: str = "") -> list[Pattern]:
    """The patterns of a file that lies in ``base``."""
    return [pattern for line in text.splitlines() if (pattern := _pattern(line, base)) is not None]


def stays_behind(patterns: Sequence[Pattern], path: str, *, is_directory: bool) -> bool:
    """Whether the last pattern that speaks of a path leaves it out; its directories are asked about before."""
    last = next((each for each in reversed(patterns) if each.matches(path, is_directory=is_directory)), None)
    return last is not None and not last.is_negated


def _pattern(line: str, base: str) -> Pattern | None:
    word = re.sub(r"(?<!\\)\s+$", "", line)
    if not word or word.startswith("#"):
        return None
    is_negated, word = word.startswith("!"), word.removeprefix("!")
    is_for_directories, word = word.endswith("/"), word.rstrip("/")
    if not word:
        return None
    # A slash within ties a pattern to the directory of its file; without one it holds at any depth below.
    anywhere = "" if "/" in word else "(?:.*/)?"
    return Pattern(re.compile(anywhere + _expression(word.lstrip("/"))), base, is_negated, is_for_directories)


def _expression(glob: str) -> str:
    r"""A glob as a regular expression: ``*`` and ``?`` within a name, ``**`` over any number of directories.

    >>> _expression("a/**/b*.py")
    'a/(?:.*/)?b[^/]*\\.py'
    """
    parts = re.split(r"(^\*\*/|/\*\*/|/\*\*$|\*+|\?|\[(?:!|\^)?\]?[^]]*\]|\\.)", glob)
    return "".join(_translated(part) for part in parts)


def _translated(part: str) -> str:
    fixed = {"**/": "(?:.*/)?", "/**/": "/(?:.*/)?", "/**": "/.*", "?": "[^/]"}
    if part in fixed:
        return fixed[part]
    if part and not part.strip("*"):
        return "[^/]*"
    if len(part) > 2 and part.startswith("["):
        inside = part[1:-1].replace("\\", r"\\")
        return f"(?!/)[{'^' + inside[1:] if inside[0] in '!^' else inside}]"
    return re.escape(part.removeprefix("\\"))
