"""Whether two nodes with one run id belong to one job, by what they run.

A run id is often left at its default, or copied with a command line, and a group with room for another node would
take in one of another job. What tells jobs apart must be the same on all nodes of one, and little is: arguments may
name a node, a disk or a log of rank 0, flags of the launcher differ, a script lies elsewhere on another host, and a
script that is edited while its job runs is what every node runs after the next restart. So programs of one role are of
one job when they are called the same and are the same by contents, or by place. Two jobs that differ in their arguments
alone are not told apart, because a node of one job must never be refused.
"""

from __future__ import annotations

from ddp_trainer.launch.protocol.messages import Identity, Node


def is_same_job(one: Identity | None, other: Identity | None) -> bool:
    """Whether two nodes of one role may be of one job; whoever does not say what it runs may be of any.

    >>> is_same_job(Identity(program="train.py", path="/a/train.py", digest="1"), Identity(program="serve.py"))
    False
    """
    if one is None or other is None:
        return True
    return one.program == other.program and (one.digest == other.digest or one.path == other.path)


def in_use(run_id: str, owner: Node, theirs: Identity | None, ours: Identity | None) -> str:
    """What a node of another job is told; ``owner`` is a node of the one that has the run."""
    return (
        f"The run {run_id!r} is in use by another job, which runs {_words(theirs)} on {owner.name}, and this one runs "
        f"{_words(ours)}; give it an --rdzv-id and an --rdzv-endpoint of its own, or, where one job runs several "
        "programs, a --role for each."
    )


def _words(identity: Identity | None) -> str:
    if identity is None:
        return "an unknown program"
    return identity.path or f"the module {identity.program}"
