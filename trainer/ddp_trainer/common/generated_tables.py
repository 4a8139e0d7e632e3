"""Tables at the end of a page of ``docs/``, which are written from data of this package; the prose above is not.

:func:`write_tables` is the entry point of the generators, :func:`with_tables` that of their tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

BEGIN: Final = "<!-- Below: written by `make docs`; a test keeps it in step. -->"


def with_tables(page: str, lines: Iterable[str]) -> str:
    """Return the page with ``lines`` in place of all that follows :data:`BEGIN`."""
    return "\n".join([page.partition(BEGIN)[0] + BEGIN, *lines]) + "\n"


def write_tables(path: str, lines: Iterable[str]) -> None:
    """Replace the tables of the page at ``path``."""
    page = Path(path).read_text(encoding="utf-8")
    Path(path).write_text(with_tables(page, lines), encoding="utf-8")
