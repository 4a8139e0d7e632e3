"""Comparison of two nodes with one run id: do they belong to one job?

A run id is often left at its default, or copied with a command line. A group with room for another node would then
accept a node of another job. Programs of one role belong to one job if they have the same name, and the same contents
or the same path.

The comparison uses nothing else, because little is the same on all nodes of one job:

- Arguments may name a node, a disk or a log of rank 0.
- Flags of the launcher may differ.
- The path of a script may differ between hosts.
- A script may be edited while its job runs. Every node runs the new version after the next restart.

Two jobs that differ only in their arguments count as one, because a node of the same job must never be refused.
"""

from __future__ import annotations

from ddp_trainer.launch.protocol.generation import Node
from ddp_trainer.launch.protocol.messages import Identity


def is_same_job(one: Identity | None, other: Identity | None) -> bool:
    """Return whether two nodes of one role may belong to one job.

    An unknown program (None) may belong to any job.

    >>> is_same_job(Identity(program="train.py", path="/a/train.py", digest="1"), Identity(program="serve.py"))
    False
    """
    if one is None or other is None:
        return True
    return one.program == other.program and (one.digest == other.digest or one.path == other.path)


def in_use(run_id: str, owner: Node, theirs: Identity | None, ours: Identity | None) -> str:
    """Return the message to a node of another job.

    Args:
        run_id: Run id that both jobs use.
        owner: Node of the job that has the run.
        theirs: Program of that job.
        ours: Program of the refused node.
    """
    return (
        f"The run {run_id!r} is in use by another job, which runs {_describe_program(theirs)} on {owner.name}, "
        f"and this one runs {_describe_program(ours)}; give it its own --rdzv-id and --rdzv-endpoint, "
        "or, where one job runs several programs, a --role for each."
    )


def _describe_program(identity: Identity | None) -> str:
    if identity is None:
        return "an unknown program"
    return identity.path or f"the module {identity.program}"
