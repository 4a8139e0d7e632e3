"""A list of pods, taken apart: what a pod has in common with the one before it is not decoded again.

The pods of a job come one after the other and are made from one template: containers and volumes are the same letters
in each of them, and most of what there is to decode.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kubectl_ddp.backend import Object

POD_LIST: Final = b'{"kind":"PodList",'
"""How such a list begins."""
ITEMS: Final = '"items":['
ABOUT: Final = '{"metadata":'
SPEC: Final = ',"spec":'
STATUS: Final = ',"status":'
OWN: Final = ',"restartPolicy":"'
"""Behind the containers, in the order of Kubernetes' own types; what follows may be a pod's own, as its node is."""
UNUSUAL: Final = "pods are written in another way"

_decode: Final = json.JSONDecoder().raw_decode


def pod_list(body: bytes) -> Object:
    """A list of pods as an API server writes it. What pods have in common is one object, which nobody may change.

    Raises ValueError for all else, pods whose fields come in another order among them: a plain decoder may know it.
    """
    text = body.decode()
    at = text.index(ITEMS) + len(ITEMS)
    document: Object = json.loads(f"{text[:at]}]}}")
    pods: list[Object] = document["items"]
    common = _Common()
    while text.startswith(ABOUT, at):
        about, at = _decode(text, at + len(ABOUT))
        end = text.find(f"}}{STATUS}{{", at) + 1
        if not end or not text.startswith(SPEC, at):
            raise ValueError(UNUSUAL)
        spec = common.spec(text[at + len(SPEC) : end])
        status, at = _decode(text, end + len(STATUS))
        if not text.startswith("}", at):
            raise ValueError(UNUSUAL)
        pods.append({"metadata": about, "spec": spec, "status": status})
        at += 2 if text.startswith("},{", at) else 1
    if text[at:].strip() != "]}":
        raise ValueError(UNUSUAL)
    return document


class _Common:
    """The first part of the spec before."""

    def __init__(self) -> None:
        self._text = ""
        self._fields: dict[str, Any] = {}

    def spec(self, text: str) -> dict[str, Any]:
        """An object in JSON, read in two parts; exact wherever it is cut, since each part has to be an object, too."""
        cut = text.rfind(OWN)
        if cut < 0:
            raise ValueError(UNUSUAL)
        if text[:cut] != self._text:
            self._fields = json.loads(f"{text[:cut]}}}")
            self._text = text[:cut]
        own, end = _decode(f"{{{text[cut + 1 :]}")
        if end != len(text) - cut:
            raise ValueError(UNUSUAL)
        return {**self._fields, **own}
