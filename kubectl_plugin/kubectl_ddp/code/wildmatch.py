"""Wildcards of git (``wildmatch.c``), matched in time linear in pattern and path.

:class:`GlobPattern` follows all matches through a pattern in parallel, as one bit each, so it never backtracks. The
package ``pathspec`` 1.1 translates patterns to regular expressions, which backtrack, and rejects ``[z-a]``, which git
accepts.
"""

from __future__ import annotations

import string
from collections.abc import Callable
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
    _stays: int = 0
    """Bits of the parts that match any number of characters except slashes: ``*``."""
    _stays_over_slashes: int = 0
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
            kept = states & (self._stays_over_slashes if letter == "/" else self._stays | self._stays_over_slashes)
            states = self._closed(kept | (states & self._matching_parts(letter)) << 1)
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
            self._stays_over_slashes |= 1 << self._size
        else:
            self._stays |= 1 << self._size
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
