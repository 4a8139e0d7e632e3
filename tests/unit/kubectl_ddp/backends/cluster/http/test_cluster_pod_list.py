"""Lists of pods: what a plain decoder would make of them, and no other thing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.backends.cluster.http.pagination import iter_pages
from kubectl_ddp.backends.cluster.http.pod_list import pod_list

Json = dict[str, Any]

CONTAINER: Json = {"name": "pytorch", "env": [{"name": "A", "value": "é"}], "resources": {}}
SIDECAR: Json = {"name": "proxy", "resizePolicy": [], "restartPolicy": "Always"}
CLAIM: Json = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"resources": {}}}}}
QUOTING: Json = {"name": "q", "args": ['},"status":{', ',"restartPolicy":"', ',"spec":{', '"items":[']}


def pod(name: str, *containers: Json, **own: Any) -> Json:
    """As an API server writes one: its fields in the order of Kubernetes' own types."""
    spec = {"volumes": [CLAIM], "containers": list(containers), "restartPolicy": "Never", **own}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": status}


def listed(*pods: Json) -> bytes:
    document = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": list(pods)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


ALIKE = listed(*(pod(f"digits-{index}", CONTAINER, nodeName=f"node-{index}") for index in range(3)))
TRAPS = listed(
    pod("a", CONTAINER, SIDECAR, nodeName="node-1"),
    pod("b", CONTAINER, QUOTING, hostname="b"),
    pod("b-1", CONTAINER, QUOTING, hostname="b-1"),
    pod("c", SIDECAR),
)


@pytest.mark.parametrize("body", [ALIKE, TRAPS, listed()], ids=["alike", "traps", "none"])
def test_a_list_is_what_a_plain_decoder_makes_of_it(body: bytes) -> None:
    assert pod_list(body) == json.loads(body)


def test_who_set_which_field_is_left_out() -> None:
    record = [{"manager": "kwok", "fieldsV1": {"f:spec": {'k:{"uid":"},"}': {}}, "f:status": {}}}]
    recorded = json.loads(TRAPS)
    for each in recorded["items"]:
        each["metadata"]["managedFields"] = record
    assert pod_list(listed(*recorded["items"])) == json.loads(TRAPS)


def test_what_pods_have_in_common_is_there_once() -> None:
    first, *others = pod_list(ALIKE)["items"]
    assert all(each["spec"]["containers"] is first["spec"]["containers"] for each in others)
    assert [each["spec"]["nodeName"] for each in (first, *others)] == ["node-0", "node-1", "node-2"]


@given(st.sampled_from([ALIKE, TRAPS]), st.integers(0), st.integers(0, 40), st.sampled_from([b"", b"}", b'"', b",{"]))
def test_a_list_that_is_damaged_is_never_read_as_another(body: bytes, at: int, length: int, instead: bytes) -> None:
    at %= len(body)
    damaged = body[:at] + instead + body[at + length :]
    try:
        found = pod_list(damaged)
    except ValueError:
        return
    assert found == json.loads(damaged)


def test_pods_whose_fields_come_in_another_order_are_read_all_the_same() -> None:
    turned = {name: pod("a", CONTAINER)[name] for name in ("spec", "status", "metadata")}
    body = listed(pod("b", CONTAINER), turned)
    with pytest.raises(ValueError, match="not an object"):
        pod_list(body)
    assert list(iter_pages(lambda _: body)) == [json.loads(body)]
