"""Ranks that wait for another one: what launchers report, and what status and top show of it."""

from __future__ import annotations

from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.job_tables import job_to_dict, rank_table
from kubectl_ddp.status.metrics_parser import parse
from kubectl_ddp.status.rank_status import RankActivity, StalledGroup, find_stalled_group
from kubectl_ddp.top.top_view import TopView
from kubectl_ddp.util.text_table import Style
from tests.support.kube_objects import job, pod, pod_metrics, rank_metrics, stall_metrics


def observed(*reports: str) -> JobState:
    samples = {
        f"digits-worker-{index}": parse(pod_metrics() + rank_metrics(index) + report)
        for index, report in enumerate(reports)
    }
    return job_state(Snapshot(job("Created", "Running"), (pod(0), pod(1))), samples)


def test_a_stall_is_what_every_pod_of_the_group_reports() -> None:
    state = observed(stall_metrics(35, 1), stall_metrics(34, 1))
    assert state.stall == StalledGroup(seconds=34, rank=1)
    assert [rank.state for rank in state.ranks] == [RankActivity.UP, RankActivity.AWAITED]


def test_a_pod_whose_ranks_move_ends_it() -> None:
    assert observed(stall_metrics(35, 1), stall_metrics(0, -1)).stall is None


def test_a_pod_of_the_group_before_is_not_counted() -> None:
    left = parse(pod_metrics(generation=1) + stall_metrics(0, -1))
    here = parse(pod_metrics(generation=2) + stall_metrics(40, 0))
    assert find_stalled_group({"a": left, "b": here}) == StalledGroup(seconds=40, rank=0)


def test_where_no_rank_is_the_cause_none_is_named() -> None:
    assert observed(stall_metrics(35, -1), stall_metrics(35, -1)).stall == StalledGroup(seconds=35, rank=None)


def test_status_and_top_name_the_rank() -> None:
    state = observed(stall_metrics(35, 1), stall_metrics(35, 1))
    plain = Style(color=False, width=None)
    assert "rank 1 on digits-worker-1" in header(state, 0.0, plain)
    assert "waited for" in rank_table(state, 0.0).render(plain)
    shown = "\n".join(TopView(state=state, now=0.0).lines(plain))
    assert "stalled: no progress for 35s" in shown
    assert "waited for" in shown
    assert job_to_dict(state)["stall"] == {"seconds": 35.0, "rank": 1}
