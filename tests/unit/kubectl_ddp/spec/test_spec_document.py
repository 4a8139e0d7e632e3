"""A job written as a document is read back as the same job."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.serialization import compact, digest, spec_from_dict, spec_to_dict
from tests.support.jobs import a_job, jobs


@given(jobs())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a loaded machine draws jobs slowly
def test_any_job_survives_json(spec: JobSpec) -> None:
    assert spec_from_dict(json.loads(compact(spec_to_dict(spec)))) == spec


def test_the_digest_ignores_the_name_and_nothing_else() -> None:
    assert digest(a_job(name="a")) == digest(a_job(name="b"))
    assert digest(a_job(max_restarts=1)) != digest(a_job(max_restarts=2))
    assert digest(a_job(), code="a") != digest(a_job(), code="b")


def test_the_digest_does_not_depend_on_the_order_of_variables() -> None:
    assert digest(a_job(env={"A": "1", "B": "2"})) == digest(a_job(env={"B": "2", "A": "1"}))


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(UsageError, match="A job has no key 'x'"):
        spec_from_dict({"x": 1})


def test_a_bad_value_is_refused_with_its_key() -> None:
    with pytest.raises(UsageError, match="nproc: 'many' is not an integer"):
        spec_from_dict({**spec_to_dict(a_job()), "nproc": "many"})
