"""Notes of a job: differences from other launchers, and between engines."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.engines import Engine
from kubectl_ddp.spec.notes import spec_notes
from kubectl_ddp.values.parsers import EnvSource
from kubectl_ddp.values.pod import Rdma
from kubectl_ddp.values.program import Gang
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job


def test_a_minority_of_nodes_is_explained_and_a_majority_needs_no_words() -> None:
    assert "2:4 may be below a majority" in spec_notes(a_job(nnodes=NodeRange(2, 4), checkpoint_claim="c"))[0]
    assert spec_notes(a_job(nnodes=NodeRange(3, 4), checkpoint_claim="c")) == []
    assert spec_notes(a_job(nnodes=NodeRange(1, 1), checkpoint_claim="c")) == []


def test_what_becomes_of_checkpoints_without_a_volume_is_explained() -> None:
    [note] = spec_notes(a_job(nnodes=NodeRange(2, 2)))
    assert "if all nodes are lost together, also by suspend, the run restarts" in note


@pytest.mark.parametrize("args", [("--checkpoint-dir", "s3://bucket/run"), ("--checkpoint-dir=gs://bucket/run",)])
def test_checkpoints_in_an_object_store_need_credentials_and_no_volume(args: tuple[str, ...]) -> None:
    [note] = spec_notes(a_job(nnodes=NodeRange(2, 2), args=args))
    assert "names no credentials for" in note
    source = {"env_from": (EnvSource.parse("secret/s3-credentials"),)}
    assert spec_notes(a_job(nnodes=NodeRange(2, 2), args=args, **source)) == []
    [note] = spec_notes(a_job(nnodes=NodeRange(2, 2), args=args, checkpoint_claim="shared", **source))
    assert "none on the volume 'shared'" in note


@pytest.mark.parametrize(("changes", "words"), [
    ({"engine": Engine.JOBSET}, "A jobset requests 4 nodes and trains with those that it gets, at least 3"),
    ({"engine": Engine.TRAINJOB}, "A trainjob requests 4 nodes"),
    ({"engine": Engine.JOBSET}, "it cannot be scaled while it runs"),
    ({"engine": Engine.TRAINJOB, "nnodes": NodeRange(4, 4), "ttl_seconds": 9}, "not the TrainJob"),
    ({"engine": Engine.PYTORCHJOB, "queue": "q"}, "Kueue admits 4 nodes together or none"),
    ({"engine": Engine.PYTORCHJOB, "queue": "q", "nnodes": NodeRange(4, 4), "spares": 1}, "4 nodes and 1 spare"),
    ({"gang": Gang.AUTO}, "render asks no cluster"),
    ({"rdma": Rdma("rdma/ib")}, "rdma/ib needs unlimited locked memory"),
])  # fmt: skip
def test_how_an_engine_or_a_queue_differs_is_said(changes: dict[str, Any], words: str) -> None:
    [note] = spec_notes(a_job(**{"nnodes": NodeRange(3, 4), "checkpoint_claim": "c"} | changes))
    assert words in note


@pytest.mark.parametrize(
    "changes", [{"engine": Engine.JOB}, {"engine": Engine.JOB, "queue": "q"}, {"engine": Engine.PYTORCHJOB}]
)
def test_an_engine_that_does_all_that_is_asked_needs_no_words(changes: dict[str, Any]) -> None:
    assert spec_notes(a_job(nnodes=NodeRange(3, 4), checkpoint_claim="c", **changes)) == []
