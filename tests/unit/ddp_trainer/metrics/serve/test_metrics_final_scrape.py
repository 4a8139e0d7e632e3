"""For whom a pod whose run is over still waits."""

from __future__ import annotations

import pytest

from ddp_trainer.metrics.serve.server import MOST_SECONDS, ScrapeTracker, max_wait_seconds

AGENT = "Prometheus/3.5.0"


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_was_scraped_every_fifteen_seconds_waits_for_one_more(clock: Clock) -> None:
    scrapes = ScrapeTracker(clock)
    for moment in (100.0, 115.0):
        clock.now = moment
        scrapes.asked(AGENT)
        assert not scrapes.is_done
    clock.now = 120.0
    scrapes.over(MOST_SECONDS)
    assert not scrapes.is_done
    clock.now = 130.0
    scrapes.asked("kubectl")
    assert not scrapes.is_done
    scrapes.asked(AGENT)
    assert not scrapes.is_done, "the answer is on its way"
    clock.now = 131.0
    assert scrapes.is_done


@pytest.mark.parametrize(("before", "most", "waits"), [(15.0, 20.0, 20.0), (60.0, 20.0, 20.0), (2.0, 20.0, 3.5)])
def test_it_waits_no_longer_than_it_may_and_no_longer_than_two_intervals(
    clock: Clock, before: float, most: float, waits: float
) -> None:
    scrapes = ScrapeTracker(clock)
    scrapes.asked(AGENT)
    clock.now += before
    scrapes.asked(AGENT)
    clock.now += 1.0
    scrapes.over(most)
    clock.now += waits - 0.1
    assert not scrapes.is_done
    clock.now += 0.2
    assert scrapes.is_done


@pytest.mark.parametrize("agents", [[], [AGENT], ["curl/8", "curl/8", "curl/8"]])
def test_nobody_is_waited_for_who_has_not_come_regularly(clock: Clock, agents: list[str]) -> None:
    scrapes = ScrapeTracker(clock)
    for agent in agents:
        scrapes.asked(agent)
        clock.now += 5.0
    scrapes.over(MOST_SECONDS)
    assert scrapes.is_done


def test_a_prometheus_that_is_gone_is_not_waited_for(clock: Clock) -> None:
    scrapes = ScrapeTracker(clock)
    for _ in range(2):
        scrapes.asked(AGENT)
        clock.now += 5.0
    clock.now += 60.0
    scrapes.over(MOST_SECONDS)
    assert scrapes.is_done


@pytest.mark.parametrize(
    ("option", "seconds"),
    [("", 20.0), ("0", 0.0), ("45", 45.0), ("-1", 20.0), ("nan", 20.0), ("1e9", 20.0), ("x", 20.0)],
)
def test_how_long_is_the_jobs_to_say(option: str, seconds: float) -> None:
    assert max_wait_seconds({"DDP_LAST_SCRAPE": option}) == seconds
