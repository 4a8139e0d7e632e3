"""A new run in the place of one that is over: an object cannot be run twice, so it goes, and another one comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.cluster.submission import Submission
from kubectl_ddp.errors import DdpError, NotFound

PAUSE_SECONDS: Final = 0.2
TRIES: Final = 150
"""Finalizers of an operator may hold the old object for some seconds."""


def renew(api: Api, job: Object, submission: Submission, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Delete a root object, wait until it is gone, and submit. Raises DdpError when it does not go."""
    about, kind = job["metadata"], roots.kind_of(job) or roots.PYTORCHJOB
    path = f"{collection(kind.api_version, kind.plural, about['namespace'])}/{about['name']}"
    api.delete(path, uid=about["uid"])
    for _ in range(TRIES):
        if not _is_there(api, path, about["uid"]):
            submission.submit()
            return
        sleep(PAUSE_SECONDS)
    raise DdpError(
        f"The {kind.kind} '{about['name']}' was deleted and does not go; nothing was created in its place.",
        hint="Look at its finalizers with kubectl, and submit it again.",
    )


def _is_there(api: Api, path: str, uid: str) -> bool:
    try:
        return bool(api.get(path)["metadata"]["uid"] == uid)
    except NotFound:
        return False
