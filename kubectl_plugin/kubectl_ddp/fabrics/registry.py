"""Registry of all fabrics by name, with lookup of combined names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubectl_ddp.fabrics import aws, azure, coreweave_nebius, google, mnnvl, oracle, plain
from kubectl_ddp.fabrics.model import Profile
from kubectl_ddp.util.nearest import suggest_known

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
"""Name for automatic choice from the job's other settings."""
NONE: Final = "none"
"""Name for no fabric: nothing is added."""
JOINT: Final = "+"
"""Separator between the fabric within racks and the fabric between racks."""


def profiles(name: str) -> tuple[Profile, ...]:
    """Return the profiles for a name such as ``ib`` or ``gb200-mnnvl+ib``; an empty tuple for ``none``.

    Raises:
        LookupError: If a part of the name is unknown, repeated, or cannot be combined with another.
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
    """Return a sentence that suggests valid names in place of an unknown one."""
    return suggest_known(name, [*FABRICS, AUTO, NONE])


def _profile(name: str) -> Profile:
    if name not in FABRICS:
        raise LookupError(f"'{name}' is not a fabric")
    return FABRICS[name]
