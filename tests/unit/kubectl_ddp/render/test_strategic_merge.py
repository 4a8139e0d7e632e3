"""A strategic merge patch, compared with what ``kubectl patch --type strategic`` makes of the same pod."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kubectl_ddp.errors import UsageError
from kubectl_ddp.render.pod_template import merge

NFS = {"name": "w", "nfs": {"path": "/"}}
A, B, C = ({"name": name, "value": value} for name, value in zip("ABC", "123", strict=True))
WITHOUT_B = [{"name": "B", "$patch": "delete"}, C]
OPTIONS = [{"name": "ndots", "value": "5"}]
ALIASES = [{"ip": "10.0.0.1", "hostnames": ["b"]}, {"ip": "10.0.0.2", "hostnames": ["c"]}]
MORE = {"name": "more", "image": "k"}
MAIN = {"name": "main", "image": "i", "env": [A, B]}
POD: dict[str, Any] = {
    "labels": {"a": "1", "b": "2"},
    "containers": [MAIN],
    "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    "dnsConfig": {"nameservers": ["10.0.0.53"], "options": OPTIONS},
}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({}, {}),
        ({"labels": {"a": None, "c": "3"}}, {"labels": {"b": "2", "c": "3"}}),
        ({"labels": {"$patch": "replace", "c": "3"}}, {"labels": {"c": "3"}}),
        ({"labels": {"$patch": "delete"}}, {"labels": None}),
        ({"dnsConfig": None}, {"dnsConfig": None}),
        ({"dnsConfig": {"nameservers": ["a"]}}, {"dnsConfig": {"nameservers": ["a"], "options": OPTIONS}}),
        ({"containers": [{"name": "main", "env": WITHOUT_B}]}, {"containers": [MAIN | {"env": [A, C]}]}),
        ({"containers": [{"name": "main", "image": "j"}, MORE]}, {"containers": [MAIN | {"image": "j"}, MORE]}),
        ({"containers": [{"$patch": "replace"}, {"name": "x"}]}, {"containers": [{"name": "x"}]}),
        ({"volumes": [{"name": "v", "$patch": "delete"}]}, {"volumes": []}),
        ({"volumes": [NFS]}, {"volumes": [*POD["volumes"], NFS]}),
        ({"hostAliases": ALIASES}, {"hostAliases": ALIASES}),
        ({"tolerations": [{"key": "x"}]}, {"tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "x"}]}),
        ({"imagePullSecrets": [{"name": "r"}]}, {"imagePullSecrets": [{"name": "r"}]}),
        ({"hostNetwork": True, "priority": 5}, {"hostNetwork": True, "priority": 5}),
    ],
)
def test_maps_and_keyed_lists_merge_and_null_and_directives_remove(patch: Any, expected: dict[str, Any]) -> None:
    wanted = {key: value for key, value in (POD | expected).items() if value is not None}
    before = repr(POD)
    assert merge(POD, patch, "p") == wanted
    assert repr(POD) == before


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ({"containers": {"name": "main"}}, "p.containers is '"),
        ({"containers": "main"}, "p.containers is '\"main\"', not a list. Write it as in a pod."),
        ({"containers": [{"image": "j"}]}, "p.containers[0] has no name. Name the entry by its name."),
        ({"containers": ["main"]}, "p.containers[0] has no name."),
        ({"containers": [{"name": "main", "env": [{"value": "1"}]}]}, "p.containers[main].env[0] has no name."),
        ({"$setElementOrder/containers": []}, "p has the directive '$setElementOrder/containers: []'"),
        ({"labels": {"$patch": "merge"}}, "p.labels has the directive '$patch: merge', which is not known here."),
        ([], "p is '[]', not a map."),
    ],
)
def test_a_malformed_patch_is_refused_by_the_name_of_its_field(patch: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        merge(POD, patch, "p")
