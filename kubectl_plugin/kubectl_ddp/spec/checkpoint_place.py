"""Where a job keeps its checkpoints: in its pods, on a volume, or in an object store that its arguments name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ddp_trainer.common.constants import STORE_CLIENTS, CheckpointScope, Env
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object

_FLAG: Final = "--checkpoint-dir"


def object_store_url(args: Sequence[str]) -> str | None:
    """Return the URL of an object store in the trainer's option ``--checkpoint-dir``; None without one.

    >>> object_store_url(["--epochs", "2", "--checkpoint-dir=s3://bucket/run"])
    's3://bucket/run'
    """
    values = [value for flag, value in pairwise(args) if flag == _FLAG]
    values += [each.removeprefix(f"{_FLAG}=") for each in args if each.startswith(f"{_FLAG}=")]
    urls = [value for value in values if value.partition("://")[0] in STORE_CLIENTS and "://" in value]
    return urls[-1] if urls else None


def keeps_checkpoints_in_pods(job: Object) -> bool:
    """Return whether the progress of a job is lost if all its pods are deleted together."""
    spec = job_kinds.submitted_spec(job)
    if object_store_url(spec.get("args") or ()) is not None:
        return False
    template = job_kinds.at(job, job_kinds.engine_of(job).template)
    if not template:  # it is in the runtime
        return "checkpointClaim" not in spec
    containers = template["spec"]["containers"]
    variables = [variable for container in containers for variable in container.get("env") or ()]
    return {"name": str(Env.CHECKPOINT_SCOPE), "value": str(CheckpointScope.POD)} in variables
