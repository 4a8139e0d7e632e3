"""Name of a fabric in a job file."""

from __future__ import annotations

from kubectl_ddp.fabrics.catalog import AUTO, profiles, suggest_name
from kubectl_ddp.values.quantity import BadValue


def parse_fabric(name: str) -> str:
    """Parse the name of a fabric, ``auto`` or ``none``. Raises BadValue."""
    if name != AUTO:
        try:
            profiles(name)
        except LookupError as error:
            raise BadValue(str(error), hint=suggest_name(name)) from None
    return name
