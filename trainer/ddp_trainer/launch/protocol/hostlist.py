"""Parser of Slurm host lists, such as ``gpu[007-012,20],login-1``.

The entry point is :func:`first_host`.
"""

from __future__ import annotations

import re
from typing import Final

_HOSTS: Final = re.compile(r"(?:[^\[\],\s]|\[\d[\d,-]*\])+")
"""Matches up to the first comma outside brackets."""

_NUMBERS: Final = re.compile(r"\[(\d+)[\d,-]*\]")


def first_host(text: str) -> str:
    """Return the first host of a list. Raises ValueError if the text is not a list of hosts.

    >>> first_host("gpu[007-012,20]-ib,login-1"), first_host("rack[1-2]n[04,09]"), first_host("a1.example.com,b2")
    ('gpu007-ib', 'rack1n04', 'a1.example.com')
    """
    if not (match := _HOSTS.match(text.strip())):
        raise ValueError("is no list of hosts")
    return _NUMBERS.sub(r"\1", match[0])
