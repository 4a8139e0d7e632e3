"""Finding one's way in rendered objects, whichever engine they are for."""

from __future__ import annotations

import re
from typing import Any

from kubectl_ddp.engines import RUNTIMES
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import render
from kubectl_ddp.spec.model import JobSpec

RUN = "0123456789ab"
"""Id of the run that is rendered."""


def worker_job(objects: list[Object]) -> Any:
    """The specification that holds the template of the workers: of the batch Job, or of a PyTorchJob's replica."""
    root = job_kinds.root_of(objects)
    holder = next((item for item in objects if item["kind"] in RUNTIMES), root)
    return job_kinds.at(holder, job_kinds.engine_of(root).template[:-1])


def worker_template(objects: list[Object]) -> Any:
    """The pod template of the workers."""
    return worker_job(objects)["template"]


def store_job(objects: list[Object]) -> Object:
    """The Job that makes the store's pod."""
    name = f"{job_kinds.root_of(objects)['metadata']['name']}-store"
    [store] = [item for item in objects if (item["kind"], item["metadata"]["name"]) == ("Job", name)]
    return store


def templates(objects: list[Object]) -> list[Any]:
    """The pod templates of the workers and of the store."""
    return [worker_template(objects), store_job(objects)["spec"]["template"]]


def worker_pod(spec: JobSpec, **more: Any) -> Object:
    """The pod of a worker; ``more`` is for the renderer."""
    pod: Object = worker_template(render(spec, RUN, **more))["spec"]
    return pod


def container(spec: JobSpec, **more: Any) -> Object:
    """The one in which the job's program runs."""
    first: Object = worker_pod(spec, **more)["containers"][0]
    return first


def environment(spec: JobSpec, **more: Any) -> dict[str, Any]:
    """Its variables: name → value, or where the value comes from."""
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom"))
        for variable in container(spec, **more)["env"]
    }


def expanded(text: str) -> str:
    """Expand ``$`` as the kubelet does where no variable of that name is set."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else found[0], text)
