"""Which jobs have to end before Kueue admits one, by quota, order and expected end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.forecast_text import quota_lines, when_sentence
from kubectl_ddp.preflight.kueue_forecast import (
    STRICT,
    Admission,
    Forecast,
    HolderProgress,
    QuotaHolder,
    forecast_to_dict,
    quota_holders,
    requested_amounts,
)

RECORDED = json.loads((Path(__file__).parents[3] / "samples" / "kueue_queue.json").read_text(encoding="utf-8"))
"""Queue of Kueue 0.18.3: 'first' holds 0.6 cpu, of which 0.3 are borrowed, and 'second' waits for 0.3."""
CPU = ("any", "cpu")


def a_queue(name: str = "lab", quota: str = "4", used: str = "4", *, cohort: str = "", **spec: Any) -> Object:
    limits = {"borrowingLimit": spec.pop("limit")} if "limit" in spec else {}
    flavor = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": quota, **limits}]}
    reserved = [{"name": "any", "resources": [{"name": "cpu", "total": used}]}]
    group = {"coveredResources": ["cpu"], "flavors": [flavor]}
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "resourceGroups": [group], **spec},
        "status": {"flavorsReservation": reserved},
    }


def a_holder(name: str, cpus: int, *, eta: float | None = None, least: int | None = None, **more: Any) -> QuotaHolder:
    about = {"namespace": "team", "kind": "Job", "uid": name, "cluster_queue": "lab", "pods": cpus, "priority": 0}
    fields: dict[str, Any] = {**about, "since": 0.0, "usage": {CPU: cpus * 1000}, **more}
    return QuotaHolder(name=name, progress=HolderProgress(eta, least), **fields)


def forecast(
    cpus: int, *holders: QuotaHolder, ahead: tuple[int, ...] = (), clusters: tuple[Object, ...] | None = None
) -> Forecast:
    every = clusters or (a_queue(),)
    before = [{"cpu": each * 1000} for each in ahead]
    return Admission(cluster=every[0], clusters=every, wanted={"cpu": cpus * 1000}, ahead=before).forecast(holders)


def names(found: Forecast) -> list[str] | None:
    return None if found.must_end is None else [holder.name for holder in found.must_end]


def recorded(**progress: float) -> Forecast:
    clusters = RECORDED["clusterQueues"]
    cluster = next(each for each in clusters if each["metadata"]["name"] == "lab")
    second = next(each for each in RECORDED["workloads"] if "second" in each["metadata"]["name"])
    holders = [
        replace(each, progress=HolderProgress(progress.get(each.name), None))
        for each in quota_holders(RECORDED["workloads"], cluster, clusters)
    ]
    return Admission(cluster=cluster, clusters=clusters, wanted=requested_amounts(second)).forecast(holders)


def test_a_recorded_queue_names_its_quota_its_limits_and_the_job_that_has_to_end() -> None:
    found = recorded(first=600.0)
    told = forecast_to_dict(found)
    [cpu] = [each for each in told["quotas"] if each["resource"] == "cpu"]
    assert cpu == {
        "flavor": "lab", "resource": "cpu", "nominal": 0.3, "used": 0.6, "cohort": "all",
        "borrowingLimit": 0.3, "borrowable": 0.0, "free": 0.0, "requested": 0.3,
    }  # fmt: skip
    [first] = told["mustEnd"]
    assert (first["namespace"], first["name"], first["kind"], first["pods"]) == ("team", "first", "Job", 2)
    assert (told["clusterQueue"], told["etaSeconds"]) == ("lab", 600.0)
    assert when_sentence(found) == "There is enough when team/first ends, in about 10m."
    assert next(quota_lines(found)) == (
        "quota of 'lab', flavor 'lab': 0.3 cpu, 0.6 used, 0 to borrow from cohort 'all', limit 0.3, 0 free, "
        "0.3 requested"
    )


def test_the_jobs_that_end_first_are_named_and_no_more_than_needed() -> None:
    soon, late, never = a_holder("soon", 1, eta=60), a_holder("late", 2, eta=900), a_holder("never", 1)
    assert names(forecast(1, late, never, soon)) == ["soon"]
    assert names(forecast(2, late, never, soon)) == ["late"], "the end of 'soon' alone is not enough, nor needed then"
    both = forecast(3, late, never, soon)
    assert (names(both), both.eta_seconds) == (["soon", "late"], 900.0)
    every = forecast(4, late, never, soon)
    assert (len(every.must_end or ()), every.eta_seconds) == (3, None), "the end of one of them is unknown"


def test_without_a_known_end_the_lowest_priority_and_the_newest_admission_come_first() -> None:
    old, new, high = a_holder("old", 1, since=1.0), a_holder("new", 1, since=2.0), a_holder("high", 2, priority=9)
    assert names(forecast(1, high, old, new)) == ["new"]
    assert names(forecast(2, high, old, new)) == ["new", "old"]
    assert when_sentence(forecast(2, high, old, new)) == (
        "There is enough when team/new and team/old have ended; when is unknown."
    )


@pytest.mark.parametrize(("strategy", "expected"), [("BestEffortFIFO", ["a"]), (STRICT, ["a", "b", "c"])])
def test_a_job_ahead_that_does_not_fit_is_overtaken_unless_the_queue_is_strict(
    strategy: str, expected: list[str]
) -> None:
    holders = [a_holder(name, 2, eta=eta) for eta, name in enumerate("abc")]
    cluster = a_queue(quota="6", used="6", queueingStrategy=strategy)
    assert names(forecast(2, *holders, ahead=(4,), clusters=(cluster,))) == expected


def test_jobs_ahead_that_take_all_quota_have_to_end_too() -> None:
    found = forecast(4, a_holder("a", 4, eta=60), ahead=(4,))
    assert (names(found), found.is_after_ahead, found.eta_seconds) == (["a"], True, None)
    assert "team/a and the jobs ahead of it have ended; when is unknown" in when_sentence(found)


def test_a_job_of_the_cohort_is_named_if_its_end_makes_quota_borrowable_within_the_limits() -> None:
    mine = a_queue("lab", "2", "2", cohort="all", limit="1")
    other = a_queue("other", "2", "2", cohort="all")
    elsewhere = a_holder("lender", 2, cluster_queue="other", eta=60)
    assert names(forecast(1, elsewhere, clusters=(mine, other))) == ["lender"]
    assert names(forecast(2, elsewhere, clusters=(mine, other))) is None, "the limit is 1"
    lines = list(quota_lines(forecast(1, elsewhere, clusters=(mine, other))))
    assert "lender in namespace team through ClusterQueue 'other'" in lines[1]


def test_a_job_that_can_shrink_need_not_end() -> None:
    found = forecast(1, a_holder("wide", 4, eta=60, least=2))
    assert found.shrink_to == {"wide": 3}
    assert "team/wide can shrink to 3 nodes" in when_sentence(found)
    assert forecast(3, a_holder("wide", 4, eta=60, least=2)).shrink_to == {}, "2 nodes are its minimum"


def test_quota_of_jobs_that_may_not_be_read_is_shown() -> None:
    found = forecast(2, a_holder("mine", 1))
    assert (names(found), found.unseen) == (None, {CPU: 3000})
    assert list(quota_lines(found))[-1] == "holds quota: jobs that may not be read, 3 cpu of flavor 'any'"
    assert "when the others end is unknown" in when_sentence(found)


def test_a_partial_admission_requests_its_minimum() -> None:
    second = next(each for each in RECORDED["workloads"] if "second" in each["metadata"]["name"])
    [pods] = second["spec"]["podSets"]
    partial = {"spec": {"podSets": [{**pods, "count": 4, "minCount": 1}]}, "status": {}}
    assert requested_amounts(partial)["cpu"] == 300
    assert requested_amounts({"spec": {"podSets": [{**pods, "count": 4}]}})["cpu"] == 1200
