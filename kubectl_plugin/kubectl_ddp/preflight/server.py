"""Checks by the API server: dry runs of the objects and their pods, and the rights of the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubectl_ddp.preflight.model import Facts, Finding, Status, Subject, read

SERVER: Final = "server"
RIGHTS: Final = "rights"


def server_takes_it(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the objects, and the pods created from them, pass all admission plugins and webhooks."""
    del subject
    refused = read(facts.refused)
    for why in dict.fromkeys(refused.values()):
        yield Finding(SERVER, Status.FAIL, why)
    if not refused:
        yield Finding(SERVER, Status.OK, "The API server takes the objects and their pods (dry run).")


def it_is_allowed(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the user has all rights that submit requires. All missing ones are reported together."""
    missing = read(facts.rights)
    if missing:
        yield Finding(
            RIGHTS,
            Status.FAIL,
            f"You may not {', '.join(map(str, missing))} in namespace '{subject.namespace}'.",
            facts.rights_hint,
        )
    else:
        yield Finding(RIGHTS, Status.OK, f"You may do all that it takes in namespace '{subject.namespace}'.")
