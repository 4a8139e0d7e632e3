"""Exclusion of files by patterns in the syntax of ``.gitignore``.

Each directory may contain a ``.gitignore`` and a ``.ddpignore``; the latter takes precedence. All files in an excluded
directory are excluded, whatever pattern matches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.code.wildmatch import GlobPattern

OURS: Final = ".ddpignore"
FILES: Final = (".gitignore", OURS)
"""Ignore files in the order of reading. Later patterns take precedence."""

ALWAYS: Final = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/",
    ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""Patterns that are always excluded, unless a ``!`` in an ignore file includes them."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern from one line of an ignore file."""

    prefix: str
    """Literal start of the pattern, up to the first wildcard. git compares it first, so ``a**/b`` is ``a`` and
    ``**/b``.
    """
    wildcard: GlobPattern
    """Pattern for the rest of the path below the file's directory, or of the name in any directory below it."""
    base: str
    """Directory of the ignore file, relative to the packed directory; empty, or with a trailing slash."""
    is_negated: bool
    """True if matching files are included."""
    is_for_directories: bool
    is_name: bool
    """True for a pattern without an inner slash, which matches names at any depth."""
    is_ours: bool
    """True for a ``.ddpignore``, where ``!`` also allows credentials."""

    def matches(self, path: str, *, is_directory: bool) -> bool:
        """Return whether the pattern matches a path relative to the packed directory."""
        if (self.is_for_directories and not is_directory) or not path.startswith(self.base):
            return False
        below = path[len(self.base) :]
        matched = below.rpartition("/")[2] if self.is_name else below
        return matched.startswith(self.prefix) and self.wildcard.matches(matched[len(self.prefix) :])


def read(text: str, base: str = "", *, is_ours: bool = False) -> list[Pattern]:
    """Parse the patterns of an ignore file in the directory ``base``; ``is_ours`` for a ``.ddpignore``."""
    lines = text.removeprefix("\ufeff").split("\n")
    return [pattern for line in lines if (pattern := _pattern(line.removesuffix("\r"), base, is_ours)) is not None]


def is_ignored(patterns: Sequence[Pattern], path: str, *, is_directory: bool) -> bool:
    """Return whether the last matching pattern excludes a path. Check its parent directories first."""
    last = next((each for each in reversed(patterns) if each.matches(path, is_directory=is_directory)), None)
    return last is not None and not last.is_negated


def allows(patterns: Sequence[Pattern], path: str) -> bool:
    """Return whether a ``!`` in a ``.ddpignore`` is the last match of a file, which allows credentials in it."""
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
    # A slash inside a pattern makes it relative to the directory of its file.
    is_name, word = "/" not in word, word.removeprefix("/")
    prefix = word[: next((at for at, letter in enumerate(word) if letter in "*?[\\"), len(word))]
    wildcard = GlobPattern(word.removeprefix(prefix))
    return Pattern(prefix, wildcard, base, is_negated, is_for_directories, is_name=is_name, is_ours=is_ours)


def _strip_trailing_whitespace(line: str) -> str:
    r"""Remove trailing spaces, except one after a backslash.

    >>> _strip_trailing_whitespace("a  "), _strip_trailing_whitespace("a\\  ")
    ('a', 'a\\ ')
    """
    bare = line.rstrip(" ")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if backslashes % 2 and len(line) > len(bare) else bare
