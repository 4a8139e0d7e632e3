"""Finding one's way in rendered objects, whichever engine they are for."""

from __future__ import annotations

from typing import Any

from kubectl_ddp import roots
from kubectl_ddp.backend import Object

SET_OF_RUNTIME: roots.Path = ("spec", "template")


def worker_job(objects: list[Object]) -> Any:
    """The specification of the batch Job that makes the workers; for a PyTorchJob the replica's."""
    root = roots.root_of(objects)
    match root["kind"]:
        case "PyTorchJob":
            return root["spec"]["pytorchReplicaSpecs"]["Worker"]
        case "TrainJob":
            [runtime] = [item for item in objects if item["kind"] == "TrainingRuntime"]
            return roots.at(roots.at(runtime, SET_OF_RUNTIME), roots.POD_JOB)
        case "JobSet":
            return roots.at(root, roots.POD_JOB)
    return root["spec"]


def worker_template(objects: list[Object]) -> Any:
    """The pod template of the workers."""
    return worker_job(objects)["template"]


def store_job(objects: list[Object]) -> Object:
    """The Job that makes the store's pod."""
    name = f"{roots.root_of(objects)['metadata']['name']}-store"
    [store] = [item for item in objects if (item["kind"], item["metadata"]["name"]) == ("Job", name)]
    return store


def templates(objects: list[Object]) -> list[Any]:
    """The pod templates of the workers and of the store."""
    return [worker_template(objects), store_job(objects)["spec"]["template"]]
