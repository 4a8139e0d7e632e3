"""All fabrics by name, and what a name of several means."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from kubectl_ddp.fabrics import aws, azure, coreweave_nebius, google, mnnvl, oracle, plain
from kubectl_ddp.fabrics.model import Profile

FABRICS: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        *plain.PROFILES,
        *aws.PROFILES,
        *google.PROFILES,
        *azure.PROFILES,
        *oracle.PROFILES,
        *coreweave_nebius.PROFILES,
        *mnnvl.PROFILES,
    )
}

AUTO: Final = "auto"
"""Whatever the job's other words say about its machines."""
NONE: Final = "none"
"""Nothing is added."""
JOINT: Final = "+"
"""Between a fabric of racks and the one between them."""


def profiles(name: str) -> tuple[Profile, ...]:
    """The profiles that ``name`` stands for, as in ``ib`` or ``gb200-mnnvl+ib``; ``none`` has none.

    Raises:
        LookupError: with a sentence, for what names no fabric.
    """
    if name == NONE:
        return ()
    found = [_profile(part) for part in name.split(JOINT)]
    between = [profile.name for profile in found if not profile.is_beside]
    if len(between) > 1:
        raise LookupError(f"'{name}' names {' and '.join(between)}, and the nodes of a job have one of them")
    if len({profile.name for profile in found}) < len(found):
        raise LookupError(f"'{name}' names a fabric twice")
    return tuple(found)


def suggest_name(name: str) -> str:
    """What to write instead of a name that is none."""
    close = difflib.get_close_matches(name, [*FABRICS, AUTO, NONE], n=1)
    return f"Did you mean '{close[0]}'?" if close else f"There are {', '.join([*FABRICS, AUTO, NONE])}."


def _profile(name: str) -> Profile:
    if name not in FABRICS:
        raise LookupError(f"'{name}' is no fabric")
    return FABRICS[name]
