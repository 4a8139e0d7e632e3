"""What ``restart`` says of a job that fails while it is being stopped: what became of it, not what was meant."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.jobs.restart import restart_job
from kubectl_ddp.engines import Engine
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.render import render
from kubectl_ddp.util.concurrency import Stop
from tests.support.jobs import a_job
from tests.support.kube_objects import CREATED, condition, snapshot
from tests.support.scripted_backend import ScriptedBackend

SPEC = a_job(engine=Engine.PYTORCHJOB, checkpoint_claim="shared")


class Failing(ScriptedBackend):
    """A job that fails when it is told to stop."""

    def __init__(self) -> None:
        super().__init__([seen("Running")])
        self.renewed: list[Sequence[Object]] = []

    def suspend(self, name: str, *, suspended: bool) -> None:
        """It fails first."""
        del name, suspended
        self._moments = [seen("Failed")]

    def watch(
        self, name: str, *, reasons: Collection[str] | None = None, stop: Stop | None = None
    ) -> Iterator[Snapshot]:
        """As it is."""
        del reasons
        yield self.job(name)

    def code(self, name: str) -> list[Object]:
        """None came with it."""
        return []

    def renew(self, name: str, objects: Sequence[Object]) -> None:
        """There is a new job."""
        del name
        self.renewed.append(objects)
        self._moments = [seen("Running", job_kinds.root_of(list(objects)))]


def seen(kind: str, root: Object | None = None) -> Snapshot:
    """The job in a condition."""
    root = root or job_kinds.root_of(render(SPEC, "run1"))
    root["metadata"] |= {"uid": "u-1", "creationTimestamp": CREATED}
    return snapshot(root | {"status": {"conditions": [condition(kind)]}})


def test_a_job_that_fails_while_it_is_being_stopped_is_said_to_get_a_new_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place: Any = Failing()
    restart_job(Options(), place, "digits", None, yes=True)
    out, err = capsys.readouterr()
    assert out == "job digits restarted in namespace 'team' of context 'scripted'\n"
    meant, became = err.splitlines()
    assert meant == "All pods of job digits (2 nodes) end and start again, from its last checkpoint."
    assert became == "Job digits failed; it gets a new run, from its last checkpoint; the old logs are deleted."

    place = Failing()
    restart_job(Options(output="json"), place, "digits", None, yes=True)
    document = json.loads(capsys.readouterr().out)
    assert document["effect"] == became
    [objects] = place.renewed
    assert document["runId"] == job_kinds.root_of(list(objects))["metadata"]["labels"][Label.RUN_ID]
    assert document["runId"] != "run1"
