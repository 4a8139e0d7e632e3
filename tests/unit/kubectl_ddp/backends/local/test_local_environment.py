"""The environment of a container, as the operator and the kubelet make it."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.backends.local.environment import expand, of_operator, resolve
from kubectl_ddp.backends.local.pods import worker_pod
from kubectl_ddp.errors import PreflightFailed
from tests.support.kube_objects import a_template, job


def operators(job_object: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in of_operator(job_object)}


def resolved(*variables: dict[str, Any], **inherited: str) -> dict[str, str]:
    return resolve([*variables], worker_pod(job(), 0, "127.9.9.2"), inherited=inherited, adapt=str)


def test_an_elastic_job_gets_what_operator_1_9_gives_it() -> None:
    wanted = job(replicas=2, bounds=(1, 4))
    wanted["spec"]["elasticPolicy"] |= {
        "rdzvHost": "digits-store",
        "rdzvPort": 29400,
        "rdzvId": "run-1",
        "maxRestarts": 3,
        "rdzvConf": [{"key": "is_host", "value": "false"}, {"key": "read_timeout", "value": "120"}],
    }
    assert operators(wanted) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_ENDPOINT": "digits-store:29400",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:4",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_ID": "run-1",
        "PET_RDZV_CONF": "is_host=false,read_timeout=120",
    }


def test_what_the_policy_leaves_out_is_left_out_or_defaulted_as_the_operator_does() -> None:
    template = a_template(ports=[{"name": "pytorchjob-port", "containerPort": 23457}])
    given = operators(job(template=template))
    assert given["PET_RDZV_ENDPOINT"] == "digits-worker-0:23457"
    assert given.keys().isdisjoint({"PET_MAX_RESTARTS", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE"})


def test_a_job_that_is_not_elastic_gets_its_number_of_nodes() -> None:
    given = operators(job(replicas=3, bounds=None))
    assert given["PET_NNODES"] == "3"
    assert "PET_RDZV_ENDPOINT" not in given


def test_one_bound_stands_for_both() -> None:
    wanted = job()
    wanted["spec"]["elasticPolicy"] = {"maxReplicas": 3}
    assert operators(wanted)["PET_NNODES"] == "3:3"


def test_the_last_entry_of_a_name_wins_so_the_operator_does() -> None:
    assert resolved({"name": "PET_NNODES", "value": "9"}, *of_operator(job()))["PET_NNODES"] == "1:4"


def test_references_are_expanded_from_what_came_before() -> None:
    variables = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)/$(C)/$$(A)"}, {"name": "C", "value": "3"}]
    assert resolved(*variables)["B"] == "1/$(C)/$(A)"


def test_a_secret_is_what_the_shell_exports() -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert resolved(secret, TOKEN="t") == {"TOKEN": "t"}
    with pytest.raises(PreflightFailed, match=r"TOKEN comes from the Secret 'hub'.*Export TOKEN in your shell"):
        resolved(secret)
    secret["valueFrom"]["secretKeyRef"]["optional"] = True
    assert resolved(secret) == {}


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    variable = {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}
    with pytest.raises(PreflightFailed, match=r"no field 'status\.phase'.*status\.podIP"):
        resolved(variable)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)", "1"), ("$$(A)", "$(A)"), ("$(B)", "$(B)"), ("$A ${A} $", "$A ${A} $"), ("$$$(A)", "$1"), ("$()", "$()")],
)
def test_expansion_is_the_kubelets(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected
