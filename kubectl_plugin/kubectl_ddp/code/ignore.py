"""Exclusion of files by patterns in the syntax of ``.gitignore``, with the wildcards of git (``wildmatch.c``).

A pattern is matched in time linear in pattern and path.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

LONGEST_PATH: Final = 4096
"""Maximum length of a path in Linux, in bytes. A pattern that needs more characters cannot match."""

_CHARACTER_CLASSES: Final[dict[str, Callable[[str], bool]]] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "blank": lambda letter: letter in " \t",
    "cntrl": lambda letter: ord(letter) < 32 or ord(letter) == 127,
    "digit": str.isdigit,
    "graph": lambda letter: letter.isprintable() and letter != " ",
    "lower": str.islower,
    "print": str.isprintable,
    "punct": lambda letter: letter in string.punctuation,
    "space": str.isspace,
    "upper": str.isupper,
    "xdigit": lambda letter: letter in string.hexdigits,
}


class _InvalidPattern(Exception):
    """A pattern that git never matches, such as one with an unclosed bracket."""


@dataclass(frozen=True, slots=True)
class _CharClass:
    """Set of characters that matches one character of a path, except a slash."""

    ranges: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()
    is_negated: bool = True

    def accepts(self, letter: str) -> bool:
        if letter == "/":
            return False
        found = any(low <= letter <= high for low, high in self.ranges)
        return (found or any(_CHARACTER_CLASSES[name](letter) for name in self.classes)) != self.is_negated


@dataclass(slots=True)
class GlobPattern:
    """One pattern. Bit ``n`` of a state is set if the path so far may end at part ``n`` of the pattern."""

    pattern: str
    _literals: dict[str, int] = field(default_factory=dict)
    _brackets: list[tuple[int, _CharClass]] = field(default_factory=list)
    _loops: int = 0
    """Bits of the parts that match any number of characters except slashes: ``*``."""
    _loops_over_slashes: int = 0
    """Bits of the parts that match any number of characters: ``**``."""
    _skips: dict[int, int] = field(default_factory=dict)
    """Distance → bits of the parts from which a match may advance by that distance without a character."""
    _size: int = 0
    _matches_nothing: bool = False

    def __post_init__(self) -> None:
        """Parse the pattern."""
        try:
            self._read(self.pattern)
        except _InvalidPattern:
            self._matches_nothing = True

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches the whole path."""
        if self._matches_nothing:
            return False
        states = self._closed(1)
        for letter in path:
            staying = states & (self._loops_over_slashes if letter == "/" else self._loops | self._loops_over_slashes)
            states = self._closed(staying | (states & self._matching_parts(letter)) << 1)
            if not states:
                return False
        return bool(states >> self._size & 1)

    def _matching_parts(self, letter: str) -> int:
        parts = self._literals.get(letter, 0)
        for bit, letters in self._brackets:
            if letters.accepts(letter):
                parts |= bit
        return parts

    def _closed(self, states: int) -> int:
        """Return the states and all states reachable from them without a character."""
        before = 0
        while before != states:
            before = states
            for distance, parts in self._skips.items():
                states |= (states & parts) << distance
        return states

    def _read(self, pattern: str) -> None:
        at = 0
        while at < len(pattern):
            at = self._read_part(pattern, at)
        if sum(parts.bit_count() for parts in self._literals.values()) + len(self._brackets) > LONGEST_PATH:
            raise _InvalidPattern

    def _read_part(self, pattern: str, at: int) -> int:
        letter = pattern[at]
        if letter == "*":
            return self._parse_asterisk(pattern, at)
        if letter == "?":
            self._add_char_class(_CharClass())
        elif letter == "[":
            letters, at = _parse_bracket(pattern, at + 1)
            self._add_char_class(letters)
        else:
            if letter == "\\":
                at += 1
                if at == len(pattern):
                    raise _InvalidPattern
            self._add_literal(pattern[at])
        return at + 1

    def _parse_asterisk(self, pattern: str, start: int) -> int:
        end = start
        while pattern[end : end + 1] == "*":
            end += 1
        is_directory = end > start + 1 and (start == 0 or pattern[start - 1] == "/")
        if is_directory and end == len(pattern):
            self._add_asterisk(over_slashes=True)
        elif is_directory and pattern[end] == "/":
            while pattern.startswith("**/", end + 1):  # repetitions are redundant
                end += 3
            self._skip(1)
            self._skip(3)
            self._size += 1
            self._add_asterisk(over_slashes=True, skips=1)
            self._add_literal("/")
            return end + 1
        else:
            self._add_asterisk(over_slashes=False)
        return end

    def _add_asterisk(self, *, over_slashes: bool, skips: int = 1) -> None:
        if over_slashes:
            self._loops_over_slashes |= 1 << self._size
        else:
            self._loops |= 1 << self._size
        self._skip(skips)
        self._size += 1

    def _add_literal(self, letter: str) -> None:
        self._literals[letter] = self._literals.get(letter, 0) | 1 << self._size
        self._size += 1

    def _add_char_class(self, letters: _CharClass) -> None:
        self._brackets.append((1 << self._size, letters))
        self._size += 1

    def _skip(self, distance: int) -> None:
        self._skips[distance] = self._skips.get(distance, 0) | 1 << self._size


def _parse_bracket(pattern: str, at: int) -> tuple[_CharClass, int]:
    """Parse a bracket that opens before ``at``, as git does. Returns its characters and the index after them."""
    is_negated = pattern[at : at + 1] in {"!", "^"} and at < len(pattern)
    at += is_negated
    ranges: list[tuple[str, str]] = []
    classes: list[str] = []
    before, is_first = "", True
    while is_first or pattern[at : at + 1] != "]":
        if at >= len(pattern):
            raise _InvalidPattern
        is_first = False
        closing = pattern.find("]", at + 2) if pattern.startswith("[:", at) else -1
        if closing > at + 2 and pattern[closing - 1] == ":":
            if (name := pattern[at + 2 : closing - 1]) not in _CHARACTER_CLASSES:
                raise _InvalidPattern
            classes.append(name)
            before, at = "", closing + 1
        elif pattern[at] == "-" and before and pattern[at + 1 : at + 2] not in {"", "]"}:
            high, at = _literal(pattern, at + 1)
            ranges.append((before, high))
            before = ""
        else:
            before, at = _literal(pattern, at)
            ranges.append((before, before))
    return _CharClass(tuple(ranges), tuple(classes), is_negated), at


def _literal(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\":
        at += 1
        if at == len(pattern):
            raise _InvalidPattern
    return pattern[at], at + 1


IGNORE_FILE: Final = ".ddpignore"
FILES: Final = (".gitignore", IGNORE_FILE)
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
    last = next((pattern for pattern in reversed(patterns) if pattern.matches(path, is_directory=is_directory)), None)
    return last is not None and not last.is_negated


def allows(patterns: Sequence[Pattern], path: str) -> bool:
    """Return whether a ``!`` in a ``.ddpignore`` is the last match of a file, which allows credentials in it."""
    last = next((pattern for pattern in reversed(patterns) if pattern.matches(path, is_directory=False)), None)
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
