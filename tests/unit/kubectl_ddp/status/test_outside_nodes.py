"""Nodes that run outside of the group: named by status, list and why, with the stage at which they fail."""

from __future__ import annotations

import pytest

from ddp_trainer.common.constants import OutsideReason
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.scrape import ScrapeLimit, observe_all
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.util.text_table import Style
from kubectl_ddp.why.diagnosis import run_checks
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Cause
from tests.support.diagnosed import LATER, NOW, facts, first, trains
from tests.support.kube_objects import job, pod, pod_metrics, snapshot
from tests.support.scripted_backend import ScriptedBackend

UNREACHED = f"{LATER} ddp-launch: The store at digits-store:29400 cannot be reached yet: its name does not resolve (x)."


def outside(reason: str, since: float, state: str = "rendezvous") -> str:
    text = pod_metrics(state=state, generation=0, world=0)
    return text + "".join(
        f'ddp_outside_group_timestamp_seconds{{reason="{item}"}} {since if item == reason else 0}\n'
        for item in (*OutsideReason, "of_a_later_version")
    )


def with_second(text: str) -> Facts:
    """A job that trains with its first node, and the metrics of its second one."""
    report = {"digits-worker-0": trains()["digits-worker-0"], "digits-worker-1": text}
    lines = {"digits-worker-1": (UNREACHED,)}
    return facts(job("Created", "Running", bounds=(1, 2)), pod(0), pod(1), metrics=report, lines=lines)


@pytest.mark.parametrize(
    ("reason", "sentence", "word"),
    [
        ("name_resolution", "the store's name does not resolve", "DNS"),
        ("connection", "the store's name resolves, and the store does not accept a connection", "connection"),
        ("handshake", "the server at the store's address is not the store of this run", "handshake"),
        ("secret", "the store has another secret", "secret"),
    ],
)
def test_a_node_that_cannot_join_is_named_with_the_stage_that_fails(reason: str, sentence: str, word: str) -> None:
    known = with_second(outside(reason, NOW - 45))
    found = first(known)
    assert (found.subject, found.severity, found.exit_code) == (Cause.OUTSIDE_GROUP, Severity.WARNING, 0)
    assert f"digits-worker-1 for 45s: {sentence}. The job trains without it." in found.message
    assert "its name does not resolve (x)" in found.evidence[-1]
    assert f"digits-worker-1 for 45s: {sentence}" in header(known.state, NOW, Style(color=False))
    rows = str(job_table([known.state], NOW, wide=True).rows)
    assert f"digits-worker-1 outside: {word}" in rows
    assert sentence in rows


def test_a_start_takes_twenty_seconds_and_a_member_is_not_outside() -> None:
    for text in (outside("connection", NOW - 19), outside("connection", NOW - 45, state="running")):
        known = with_second(text)
        assert first(known).subject is Cause.RUNNING
        assert "Outside" not in header(known.state, NOW, Style(color=False))


def test_a_node_that_waits_for_its_place_is_shown_and_is_no_fault() -> None:
    known = with_second(outside("waiting", NOW - 45))
    assert first(known).subject is Cause.RUNNING
    assert "digits-worker-1 for 45s: it waits for a place in the group" in header(known.state, NOW, Style(color=False))
    assert "outside" not in str(job_table([known.state], NOW, wide=True).rows)
    assert with_second(outside("waiting", NOW - 45, state="spare")).state.outside == ()


def test_without_a_group_the_node_that_cannot_reach_the_store_explains_why_the_others_wait() -> None:
    waits = f"{LATER} ddp-launch: 1 node ready (digits-worker-0), missing: digits-worker-1, waiting for a group"
    report = {"digits-worker-0": outside("waiting", NOW - 60), "digits-worker-1": outside("name_resolution", NOW - 60)}
    known = facts(
        job("Created", bounds=(2, 2)),
        *(pod(0), pod(1), pod(0, role="store")),
        metrics=report,
        lines={"digits-worker-0": (waits,), "digits-worker-1": (UNREACHED,)},
    )
    assert [finding.subject for finding in run_checks(known)][:2] == [Cause.OUTSIDE_GROUP, Cause.RENDEZVOUS]
    assert first(known).exit_code == 13


def test_a_list_scrapes_more_pods_of_a_job_whose_group_is_short_of_nodes() -> None:
    class Pods(ScriptedBackend):
        asked = size = 0

        def metrics(self, pod: Object, _families: object = ()) -> str:
            self.asked += 1
            is_lost = pod["metadata"]["name"].endswith("-2")
            return outside("connection", NOW - 45) if is_lost else f"{pod_metrics()}ddp_nodes {self.size}\n"

    backend, shown = Pods([]), [snapshot(job("Created", "Running"), pod(0), pod(1), pod(2))]
    for backend.size, count in ((2, 3), (3, 2)):
        backend.asked = 0
        (state,) = observe_all(backend, shown, most=ScrapeLimit(of_each=2, in_all=9), for_table=True)
        assert (backend.asked, len(state.outside)) == (count, count - 2)
