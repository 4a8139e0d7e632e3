"""The CustomResourceDefinition of DDPJob has every key of a job, in a form that an API server accepts.

What it accepts and refuses is tested on a real API server, in ``tests/cluster/test_cluster_ddpjob.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from kubectl_ddp.client.layers import layer_of_object
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.fields import FILE_KEYS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from kubectl_ddp.spec.serialization import to_ddpjob
from tests.support.jobs import jobs
from tests.support.refused_jobs import BY_SERVER, ddpjob
from tools.docs.ddpjob_crd import CHANGEABLE, crd_object, root_schema, text

CONTEXT = DefaultingContext(image="registry.example.com/train:1", reads_files=False)


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    yield schema
    for item in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if isinstance(item, dict):
            yield from nodes(item)


def test_the_file_is_one_definition_with_status_and_scale() -> None:
    found = yaml.safe_load(text())
    assert found == crd_object()
    [version] = found["spec"]["versions"]
    assert (found["metadata"]["name"], found["spec"]["names"]["shortNames"]) == ("ddpjobs.ddp.dev", ["ddp"])
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"


def test_every_schema_has_one_type_and_a_pattern_without_lookahead() -> None:
    for schema in nodes(root_schema()):
        assert isinstance(schema.get("type", ""), str)
        assert "(?=" not in schema.get("pattern", "")
        assert "default" not in schema, "it would be stronger than the value of a preset"


def test_no_key_but_those_of_a_running_job_may_change() -> None:
    [rule] = [item["rule"] for item in root_schema()["x-kubernetes-validations"] if "oldSelf" in item["rule"]]
    fixed = {key for key in FILE_KEYS if f"oldSelf.spec.{key})" in rule}
    assert fixed == set(FILE_KEYS) - {"name", "namespace"} - CHANGEABLE


@given(jobs())
@settings(deadline=None, max_examples=40)
def test_a_job_that_was_submitted_as_a_ddpjob_is_the_same_job(spec: JobSpec) -> None:
    layer = {key: value for key, value in layer_of_object(to_ddpjob(spec)).items() if key != "namespace"}
    made = resolve([layer], CONTEXT).spec
    assert resolve([layer_of_object(to_ddpjob(made))], CONTEXT).spec == made
    chosen, stored = to_ddpjob(spec)["spec"], to_ddpjob(made)["spec"]
    assert [(key, stored[key]) for key in chosen if key != "env"] == [
        item for item in chosen.items() if item[0] != "env"
    ]
    assert stored.keys() - chosen.keys() <= {"env", "topology"}  # both have defaults by the GPU


@pytest.mark.parametrize(("changes", "sentence"), BY_SERVER, ids=lambda value: str(value)[:60])
def test_the_command_refuses_what_the_api_server_refuses(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        resolve([layer_of_object(ddpjob(changes))], CONTEXT)
