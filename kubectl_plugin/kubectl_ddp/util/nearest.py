"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def suggest_close_match(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a question with the closest known name; empty if none is close.

    >>> suggest_close_match("trian.py", ["train.py", "data.py"]), suggest_close_match("x", ["train.py"])
    ("Did you mean 'train.py'?", '')
    """
    import difflib  # noqa: PLC0415 - only for errors

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"Did you mean '{close[0]}'?" if close else ""


def suggest_known(word: str, known: Iterable[str]) -> str:
    """Return a question with the closest known name; all known names if none is close.

    >>> suggest_known("x", ["train", "data"])
    'There are train, data.'
    """
    names = list(known)
    return suggest_close_match(word, names) or f"There are {', '.join(names)}."


def suggest_file(path: str) -> str:
    """Return a question with the closest file name in the directory of a missing file; empty if none is close."""
    missing = Path(path)
    try:
        beside = [each.name for each in missing.parent.iterdir() if each.is_file()]
    except OSError:
        return ""
    return suggest_close_match(path, [str(missing.with_name(name)) for name in beside])
