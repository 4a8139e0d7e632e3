"""A list of pods, taken apart: what a pod has in common with the one before it is not decoded again.

The pods of a job come one after the other and are made from one template: containers and volumes are the same letters
in each of them, and most of what there is to decode. Who set which field, half of a list's bytes, is not looked at.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.managers import BEGIN

POD_LIST: Final = b'{"kind":"PodList",'
"""How such a list begins."""
ITEMS: Final = b'"items":['
ABOUT: Final = b'{"metadata":'
SPEC: Final = b'},"spec":{'
STATUS: Final = b'},"status":{'
NEXT: Final = b'}},{"metadata":{'
OWN: Final = b',"restartPolicy":"'
"""Behind the containers, in the order of Kubernetes' own types; what follows may be a pod's own, as its node is."""

_decoder: Final = json.JSONDecoder()


def pod_list(body: bytes) -> Object:
    """A list of pods as an API server writes it. What pods have in common is one object, which nobody may change.

    Raises ValueError for all else, pods whose fields come in another order among them: a plain decoder may know it.
    """
    at = body.index(ITEMS) + len(ITEMS)
    document = _object(body[:at] + b"]}")
    pods: list[Object] = document["items"]
    common = _Common()
    while body.startswith(ABOUT, at):
        spec = body.index(SPEC, at)
        status = body.index(STATUS, spec)
        after = body.find(NEXT, status)
        end = after + 1 if after >= 0 else body.rindex(b"}]}")
        pod = {
            "metadata": _parse_metadata(body[at + len(ABOUT) : spec + 1]),
            "spec": common.spec(body[spec + len(SPEC) - 1 : status + 1]),
            "status": _object(body[status + len(STATUS) - 1 : end]),
        }
        pods.append(pod)
        at = end + (2 if after >= 0 else 1)
    if body[at:].strip() != b"]}":
        raise ValueError("pods are written in another way")
    return document


def _parse_metadata(text: bytes) -> dict[str, Any]:
    """Metadata, without the record of who set what, which comes last in it."""
    begin = text.find(BEGIN)
    return _object(text if begin < 0 or not text.endswith(b"]}") else text[:begin] + b"}")


def _object(text: bytes) -> dict[str, Any]:
    letters = text.decode()
    found, end = _decoder.raw_decode(letters)
    if end != len(letters) or not isinstance(found, dict):
        raise ValueError("this is no object")
    return found


class _Common:
    """The first part of the spec before."""

    def __init__(self) -> None:
        self._text = b""
        self._fields: dict[str, Any] = {}

    def spec(self, text: bytes) -> dict[str, Any]:
        """An object in JSON, read in two parts; exact wherever it is cut, since each part has to be an object, too."""
        cut = text.rindex(OWN)
        if text[:cut] != self._text:
            self._fields = _object(text[:cut] + b"}")
            self._text = text[:cut]
        return {**self._fields, **_object(b"{" + text[cut + 1 :])}
