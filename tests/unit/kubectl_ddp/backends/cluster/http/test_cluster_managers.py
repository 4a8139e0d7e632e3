import json
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.api import without_records

Json = dict[str, Any]

NASTY = 'kubelet]},"spec":{"a":[1],"name":"x","uid":"y","managedFields":[{}]}'
"""Name of a field manager, which a client may choose freely."""
RECORD = [
    {
        "manager": NASTY,
        "operation": "Update",
        "fieldsV1": {
            "f:metadata": {"f:uid": {}, "f:name": {}, 'k:{"uid":"e456ba0f"}': {}},
            "f:spec": {"f:containers": {'k:{"name":"pytorch"}': {".": {}, "f:args": {}}}},
            'v:"],\\"name\\":\\""': {},
        },
    },
    {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}, "subresource": "status"},
]


def written(listed: Json) -> bytes:
    """Encode a list as the API server does: fields in their order, without spaces."""
    return json.dumps(listed, separators=(",", ":")).encode()


def pod(name: str, *, record: list[Json] | None) -> Json:
    """Return a pod, with its fields in the order of Kubernetes' types."""
    metadata = {
        "name": name,
        "uid": "1",
        "annotations": {"note": NASTY},
        "ownerReferences": [{"name": "j", "uid": "2"}],
    }
    metadata |= {"managedFields": record} if record is not None else {}
    container = {"name": "a", "args": [',"managedFields":[', ']},"spec":'], "ports": [{"name": "http"}]}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Running"}}


def pods(*items: Json, kind: str = "PodList") -> Json:
    return {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": list(items)}


def custom(name: str, *, record: list[Json] | None) -> Json:
    """Return a custom object, with its fields in alphabetical order."""
    metadata = {"annotations": {"note": NASTY}, "labels": {"a": "b"}}
    metadata |= {"managedFields": record} if record is not None else {}
    metadata |= {"name": name, "namespace": "team", "ownerReferences": [{"name": "j", "uid": "2"}], "uid": "1"}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": {"a": [{"name": "b"}]}}


def customs(*items: Json) -> Json:
    return {"apiVersion": "kubeflow.org/v1", "items": list(items), "kind": "PyTorchJobList", "metadata": {}}


@pytest.mark.parametrize(("made", "listed"), [(pod, pods), (custom, customs)])
@pytest.mark.parametrize("records", [
    [RECORD], [RECORD, RECORD], [None, RECORD, None], [None, None], [[], RECORD], [],
])  # fmt: skip
def test_lists_lose_the_record_of_who_set_what_and_nothing_else(made: Any, listed: Any, records: list[Any]) -> None:
    body = written(listed(*(made(f"a-{number}", record=record) for number, record in enumerate(records))))
    bare = listed(*(made(f"a-{number}", record=None) for number, _ in enumerate(records)))
    assert json.loads(without_records(body)) == bare


@pytest.mark.parametrize("listed", [
    pods(pod("a", record=RECORD), pod("b", record=RECORD), kind="EventList"),
    pods(custom("a", record=RECORD), custom("b", record=RECORD)),
    customs(pod("a", record=RECORD), pod("b", record=RECORD)),
    pods({"metadata": {"name": "a", "uid": "1", "managedFields": RECORD}, "data": {}}, pod("b", record=None)),
    {"kind": "PodList", "items": [], "managedFields": [1]},
])  # fmt: skip
def test_a_list_of_another_shape_stays_as_it_is(listed: Json) -> None:
    assert without_records(written(listed)) == written(listed)


def test_what_is_torn_or_no_json_stays_as_it_is_for_the_decoder_to_refuse() -> None:
    torn = written(pods(pod("a", record=RECORD)))
    torn = torn[: torn.index(b'"operation"')]
    assert without_records(torn) == torn
    assert without_records(b"<html>") == b"<html>"
