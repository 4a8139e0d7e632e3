"""Tables at the end of a page of ``docs/``, which are written from data; the prose above is not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

BEGIN: Final = "<!-- Below: written by `make docs`; a test keeps it in step. -->"


def with_tables(page: str, lines: Iterable[str]) -> str:
    """Return the page with ``lines`` in place of all that follows :data:`BEGIN`."""
    return "\n".join([page.partition(BEGIN)[0] + BEGIN, *lines]) + "\n"
