"""Which files stay behind: patterns as git's documentation of ``.gitignore`` has them.

Each directory may hold a ``.gitignore`` and a ``.ddpignore``; the latter has the last word. What lies in a directory
that stays behind stays behind too, whatever is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.code.wildmatch import GlobPattern

OURS: Final = ".ddpignore"
FILES: Final = (".gitignore", OURS)
"""In the order in which they are read: what comes later wins."""

ALWAYS: Final = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/",
    ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""What no job wants; a ``!`` in one of the files brings it back."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of an ignore file."""

    prefix: str
    """What a path begins with, up to the first wildcard; git compares it before, so ``a**/b`` is ``a`` and ``**/b``."""
    wildcard: GlobPattern
    """Of the rest of a path below the directory of the file, or of a name in any directory below it."""
    base: str
    """The directory of the file, below the one that is packed; empty, or with a slash at its end."""
    is_negated: bool
    """Whether what matches is packed after all."""
    is_for_directories: bool
    is_name: bool
    """Without a slash within: it matches a name at any depth."""
    is_ours: bool
    """Of a ``.ddpignore``, where ``!`` also allows credentials."""

    def matches(self, path: str, *, is_directory: bool) -> bool:
        """Whether it speaks of a path below the directory that is packed."""
        if (self.is_for_directories and not is_directory) or not path.startswith(self.base):
            return False
        below = path[len(self.base) :]
        matched = below.rpartition("/")[2] if self.is_name else below
        return matched.startswith(self.prefix) and self.wildcard.matches(matched[len(self.prefix) :])


def read(text: str, base: str = "", *, is_ours: bool = False) -> list[Pattern]:
    """The patterns of a file that lies in ``base``; ``is_internal_frame`` where it is a ``.ddpignore``."""
    lines = text.removeprefix("\ufeff").split("\n")
    return [pattern for line in lines if (pattern := _pattern(line.removesuffix("\r"), base, is_ours)) is not None]


def is_ignored(patterns: Sequence[Pattern], path: str, *, is_directory: bool) -> bool:
    """Whether the last pattern that speaks of a path leaves it out; its directories are asked about before."""
    last = next((each for each in reversed(patterns) if each.matches(path, is_directory=is_directory)), None)
    return last is not None and not last.is_negated


def allows(patterns: Sequence[Pattern], path: str) -> bool:
    """Whether a ``!`` in a ``.ddpignore`` has the last word on a file, so that it may travel whatever it holds."""
    last = next((each for each in reversed(patterns) if each.matches(path, is_directory=False)), None)
    return last is not None and last.is_negated and last.is_ours


def _pattern(line: str, base: str, is_ours: bool) -> Pattern | None:
    word = _strip_trailing_whitespace(line)
    if not word or word.startswith("#"):
        return None
    is_negated, word = word.startswith("!"), word.removeprefix("!")
    is_for_directories, word = word.endswith("/"), word.removesuffix("/")
    if not word:
        return None
    # A slash within ties a pattern to the directory of its file.
    is_name, word = "/" not in word, word.removeprefix("/")
    prefix = word[: next((at for at, letter in enumerate(word) if letter in "*?[\\"), len(word))]
    wildcard = GlobPattern(word.removeprefix(prefix))
    return Pattern(prefix, wildcard, base, is_negated, is_for_directories, is_name=is_name, is_ours=is_ours)


def _strip_trailing_whitespace(line: str) -> str:
    r"""Without spaces at the end, but for one that a backslash keeps.

    >>> _strip_trailing_whitespace("a  "), _strip_trailing_whitespace("a\\  ")
    ('a', 'a\\ ')
    """
    bare = line.rstrip(" ")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if backslashes % 2 and len(line) > len(bare) else bare
