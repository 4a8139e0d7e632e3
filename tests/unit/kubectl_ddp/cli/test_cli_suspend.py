"""Checkpoints that are lost with the pods of a job, of which ``suspend`` and ``restart`` warn."""

from __future__ import annotations

import pytest

from kubectl_ddp.engines import Engine
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import render
from kubectl_ddp.spec.trainer_arguments import keeps_checkpoints_in_pods
from tests.support.jobs import ENGINES, a_job


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("claim", [None, "shared"])
def test_progress_goes_with_the_pods_unless_there_is_a_claim(engine: Engine, claim: str | None) -> None:
    job = job_kinds.root_of(render(a_job(engine=engine, checkpoint_claim=claim), "run1"))
    assert keeps_checkpoints_in_pods(job) is (claim is None)


@pytest.mark.parametrize("engine", ENGINES)
def test_progress_stays_in_an_object_store_whatever_the_engine(engine: Engine) -> None:
    job = job_kinds.root_of(render(a_job(engine=engine, args=("--checkpoint-dir", "s3://bucket/run")), "run1"))
    assert not keeps_checkpoints_in_pods(job)
