"""Metrics, rules and alerts of a release of ddp-platform, in the cluster's own Prometheus operator."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import Port
from ddp_trainer.common.metric_names import Metric
from tests.cluster.cluster_prometheus import ClusterPrometheus
from tests.cluster.helm_release import PLATFORM, Release
from tests.cluster.knocking import knock
from tests.cluster.live_cluster import Namespace, until

pytestmark = [pytest.mark.quiet, pytest.mark.timeout(400)]

LATE: Final = {"data": "0", "forward": "1", "backward": "2"}
"""Job, named after the phase in which a rank is slow → that rank."""
CONTROL: Final = "never"
SCRIPT: Final = Path(__file__).parent.parent / "scripts" / "late.py"
SIZE: Final = (
    *("--nnodes", "1", "--nproc", "3", "--cpu", "300m", "--memory", "2Gi", "--shm", "64Mi"),
    *("--engine", "job", "--grace", "5s"),
)
QUICK: Final = {
    "DdpStraggler": {"for": "10s", "threshold": 2},
    "DdpTrainingStalled": {"for": "0s", "threshold": 12},
    "DdpRankBehindCollective": {"for": "0s", "threshold": 12},
}
"""Alerts of values.yaml with seconds instead of minutes, so a starting rank counts as behind. Ranks share cores with
other pods, and sometimes take twice as long; a late rank takes five times as long."""
FIRST_NUMBERS_SECONDS: Final = 30.0
"""Maximum time from the first step until Prometheus has the throughput of each rank."""


def test_alerts_name_the_rank_that_is_late_and_the_one_that_is_stopped(
    platform: Release, prometheus: ClusterPrometheus
) -> None:
    user = _jobs(platform)
    watched = _Alerts(prometheus, user.name)

    def rates() -> list[dict[str, Any]]:
        found = prometheus.query(f'rate({Metric.SAMPLES}{{namespace="{user.name}",ddp_job="{CONTROL}"}}[1m]) > 0')
        return found if len(found) == 3 else []

    numbers = until("the throughput of each rank in Prometheus", rates, seconds=180)
    told_at = time.time()
    assert {number["metric"]["rank"] for number in numbers} == {"0", "1", "2"}
    assert told_at - _first_step(user) < FIRST_NUMBERS_SECONDS

    address = next(pod["status"]["podIP"] for pod in user.pods() if pod["metadata"]["name"].startswith(CONTROL))
    doors = {"metrics": (address, int(Port.METRICS))}
    assert knock(platform.space, "stranger", doors) == {"metrics": False}
    late = set(LATE.items())
    until("an alert for each rank that is late", lambda: watched.on_timer("DdpStraggler") >= late, seconds=150)
    assert watched.on_timer("DdpStraggler") == late, "alert for a rank that is not late"

    user.ddp("exec", CONTROL, "--rank", "1", "--", "sh", "-c", "kill -STOP $RANK_PID").ok()
    until("an alert for the job that stands", lambda: watched.firing("DdpTrainingStalled") == {(CONTROL, "")})
    until(
        "an alert for the rank that it waits for", lambda: (CONTROL, "1") in watched.firing("DdpRankBehindCollective")
    )
    assert watched.firing("DdpRankBehindCollective") == {(CONTROL, "1")}


def _jobs(platform: Release) -> Namespace:
    """Install the platform, and submit four jobs: in three of them one rank is late."""
    monitor = {"interval": "5s", "scrapeTimeout": "5s"}
    monitoring = {"enabled": True, "podMonitor": monitor, "rules": {"alerts": QUICK}}
    values = platform.values(
        monitoring=monitoring, namespaces=[{"name": platform.gone, "keep": False}], test={"enabled": False}
    )
    platform.run("install", str(PLATFORM), values=values).ok()
    user = dataclasses.replace(platform.space, name=platform.gone, _collections=[])
    for place in (*LATE, CONTROL):
        script = (str(SCRIPT), "--", place, LATE.get(place, "-"))
        user.ddp("submit", "--name", place, "--image", user.image, *SIZE, *script).ok()
    return user


def _first_step(user: Namespace) -> float:
    """Return the Unix time at which the last rank of the job without a late rank completed its first step."""
    lines = user.ddp("logs", CONTROL, "--rank", "all").ok().out.splitlines()
    return max(float(line.rpartition(" ")[2]) for line in lines if "first step at" in line)


@dataclasses.dataclass(frozen=True)
class _Alerts:
    """Alerts for the jobs of one namespace."""

    prometheus: ClusterPrometheus
    namespace: str

    def firing(self, alert: str) -> set[tuple[str, str]]:
        """Job and rank of each alert that fires now; an alert without a rank has an empty one."""
        return self._named(self._series(alert))

    def on_timer(self, alert: str) -> set[tuple[str, str]]:
        """Job and rank of each alert that fired within ten minutes."""
        return self._named(f"last_over_time({self._series(alert)}[10m])")

    def _series(self, alert: str) -> str:
        return f'ALERTS{{alertname="{alert}",alertstate="firing",namespace="{self.namespace}"}}'

    def _named(self, expression: str) -> set[tuple[str, str]]:
        found = self.prometheus.query(expression)
        return {(item["metric"]["ddp_job"], item["metric"].get("rank", "")) for item in found}
