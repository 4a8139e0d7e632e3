"""The number of granted nodes, and the reason if it is below the requested number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.kube.kueue_queue import KUEUE_MIN_PARALLELISM
from kubectl_ddp.kube.objects import Object, Queued, Snapshot
from kubectl_ddp.status.job_state import Nodes, job_state
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.util.text_table import Style
from tests.support import kube_objects

ADMITTED, WAITS = Queued("team", is_admitted=True), Queued("team", is_admitted=False)


def indexed_job(nodes: int, *, suspend: bool = False, **annotations: str) -> Object:
    """An Indexed Job that was submitted with --nnodes 1:4, and has as many nodes now."""
    metadata = {"ddp.dev/spec": json.dumps({"nnodes": "1:4"}), **annotations}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "digits", "uid": "u-1", "labels": {"ddp.dev/job": "digits"}, "annotations": metadata},
        "spec": {"parallelism": nodes, "completions": nodes, "suspend": suspend},
        "status": {"active": nodes},
    }


def a_pod(index: int, reason: str) -> Object:
    """A pod that runs, or that has no machine for this reason."""
    made = kube_objects.pod(index, kube_objects.waiting() if reason else None)
    if reason:
        made["spec"].pop("nodeName")
        made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason}]
    return made


def nodes(job: Object, *reasons: str, queue: Queued | None = ADMITTED) -> Nodes:
    pods = tuple(a_pod(index, reason) for index, reason in enumerate(reasons))
    return job_state(Snapshot(job, pods, queued=queue), {}).nodes


PARTIAL: dict[str, Any] = {KUEUE_MIN_PARALLELISM: "1"}
SHRUNK: dict[str, Any] = {Annotation.SIZE: json.dumps({"wanted": 4, "granted": 2, "reason": "team/high waits"})}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (nodes(indexed_job(4, suspend=True, **PARTIAL), queue=WAITS), (0, 4, "waits for quota")),
        (nodes(indexed_job(2, **PARTIAL), "", ""), (2, 4, "less quota at its start")),
        (nodes(indexed_job(4, **PARTIAL), "", "", "", ""), (4, 4, "")),
        (nodes(indexed_job(3), "", "SchedulingGated", "SchedulingGated"), (1, 3, "2 wait for quota")),
        (nodes(indexed_job(2), "", "Unschedulable", queue=None), (1, 2, "1 finds no machine")),
        (nodes(indexed_job(2), "", "", queue=None), (2, 2, "")),
        (nodes(indexed_job(2, **SHRUNK), "", ""), (2, 4, "team/high waits")),
        (nodes(indexed_job(3, **SHRUNK), "", "", ""), (3, 3, "")),
        (nodes(indexed_job(2, **{Annotation.SIZE: "{"}), "", ""), (2, 2, "")),
        (nodes(indexed_job(2, suspend=True), queue=None), (0, 2, "")),
    ],
)
def test_a_size_that_is_smaller_than_wanted_has_a_reason(found: Nodes, expected: tuple[int, int, str]) -> None:
    assert (found.granted, found.wanted, found.shortage) == expected


def test_the_table_has_a_column_for_it_where_a_job_is_short_of_nodes() -> None:
    short = job_state(Snapshot(indexed_job(2, **PARTIAL), (a_pod(0, ""), a_pod(1, "")), queued=ADMITTED), {})
    header, line = job_table([short], 0.0).render(Style()).splitlines()
    assert "GRANTED" in header
    assert "2 of 4: less quota at its start" in line
