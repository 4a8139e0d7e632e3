"""What the API server itself has to say: by a dry run of the objects and of the pods, and about what one may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubectl_ddp.checks.model import Facts, Finding, Status, Subject, read

SERVER: Final = "server"
RIGHTS: Final = "rights"


def server_takes_it(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The objects, and the pods that controllers will make of them, pass every admission plugin and webhook."""
    del subject
    refused = read(facts.refused)
    for why in dict.fromkeys(refused.values()):
        yield Finding(SERVER, Status.FAIL, why)
    if not refused:
        yield Finding(SERVER, Status.OK, "The API server takes the objects and their pods (dry run).")


def it_is_allowed(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Everything that submitting takes is allowed; all that is not is said at once."""
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
