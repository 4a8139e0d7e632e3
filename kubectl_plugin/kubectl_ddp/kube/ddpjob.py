"""The kind DDPJob: its names, and the fields that a job file does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.kube.objects import Object, condition_of

API_VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "DDPJob"
PLURAL: Final = "ddpjobs"
HEADER: Final = {"apiVersion": API_VERSION, "kind": KIND}
METADATA: Final = ("name", "namespace")
"""Keys of a job that are below ``metadata``; all others are below ``spec``."""
KUBECTLS: Final = ("labels", "annotations")
"""Further keys of ``metadata`` in a file, which only ``kubectl apply`` uses."""
SUSPEND: Final = "suspend"
"""Field of the specification: true for a job without pods."""
REPLICAS: Final = "replicas"
"""Field of the specification: number of nodes within the bounds of ``nnodes``, set by ``kubectl scale``."""
CONTROLS: Final = (SUSPEND, REPLICAS)
"""Fields of the specification that change a running job. A job file does not have them."""
CODE: Final = f"{GROUP}/code"
"""Annotation with the hash of the code that the submitter sends, in ConfigMaps that the DDPJob owns."""


def owner_of(item: Object) -> str | None:
    """Return the name of the DDPJob that an object was made for; None without one."""
    owners = item["metadata"].get("ownerReferences") or ()
    names = (
        str(owner["name"]) for owner in owners if (owner.get("apiVersion"), owner.get("kind")) == (API_VERSION, KIND)
    )
    return next(names, None)


def why_no_root(job: Object) -> str | None:
    """Return a sentence about a DDPJob for which the controller has made no objects yet; None if it has."""
    status, name = job.get("status") or {}, f"The {KIND} '{job['metadata']['name']}'"
    if status.get("root"):
        return None
    valid = condition_of(job, "Valid")
    if valid.get("status") == "False":
        return f"{name} is not valid: {valid.get('message')}"
    if (job.get("spec") or {}).get(SUSPEND):
        return f"{name} is suspended, and has no objects yet."
    return f"{name} has no objects yet: the controller has not made them."


def owner_uids(item: Object) -> set[str]:
    """Return the uids of the owners of an object."""
    return {str(owner["uid"]) for owner in item["metadata"].get("ownerReferences") or ()}


def owner_reference(job: Object) -> Mapping[str, Any]:
    """Return the owner reference of an object that is to be deleted with a DDPJob or a TrainJob."""
    metadata = job["metadata"]
    names = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**names, "controller": False}
