"""Cleanup after commands that were interrupted before they created the root object. Their objects have no owner."""

from __future__ import annotations

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.write.recreate import delete_record
from kubectl_ddp.engines.registry import RUNTIMES
from kubectl_ddp.errors import NotFound


def delete_remains(api: Api, name: str, namespace: str) -> bool:
    """Delete the ownerless objects of a job that does not exist. Returns true if there were any.

    Objects with an owner are deleted with their owner.
    """
    found = delete_record(api, name, namespace)
    for version, plural in RUNTIMES.values():
        path = f"{collection(version, plural, namespace)}/{name}"
        try:
            about = api.get(path)["metadata"]
        except (NotFound, NotServed):
            continue
        if (about.get("labels") or {}).get(Label.JOB) == name and not about.get("ownerReferences"):
            api.delete(path, uid=about["uid"])
            found = True
    return found
