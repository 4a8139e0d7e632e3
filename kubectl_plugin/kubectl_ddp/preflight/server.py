"""Checks by the API server: dry runs of the objects and their pods, and the rights of the user."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.util.finding import Finding, error, ok


def server_takes_it(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the objects, and the pods created from them, pass all admission plugins and webhooks."""
    del subject
    refused = read(facts.refused)
    for why in dict.fromkeys(refused.values()):
        yield error(why)
    if not refused:
        yield ok("The API server takes the objects and their pods (dry run).")


def it_is_allowed(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the user has all rights that submit requires. All missing ones are reported together."""
    missing = read(facts.rights)
    if missing:
        yield error(
            f"You may not {', '.join(map(str, missing))} in namespace '{subject.namespace}'.", facts.rights_hint
        )
    else:
        yield ok(f"You may do all that it takes in namespace '{subject.namespace}'.")
