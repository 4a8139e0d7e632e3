"""Entry points: parts of the command line in packages that it does not import."""

from __future__ import annotations

from typing import Any

from kubectl_ddp.errors import DdpError


def load_entry_point(group: str, name: str) -> Any:
    """Return the object that an installed package has registered. Raises DdpError if there is none."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and most commands do not need it

    for found in entry_points(group=group, name=name):
        return found.load()
    raise DdpError(
        f"No installed package registers '{name}' in '{group}'.",
        hint="Install kubectl-ddp with pip again: source code on PYTHONPATH registers nothing.",
    )
