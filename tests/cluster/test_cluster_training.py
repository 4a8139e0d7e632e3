"""Real training on a real cluster, through the real command line."""

from __future__ import annotations

import gzip
import json

import pytest

from ddp_trainer.common.constants import Label
from tests.cluster.live_cluster import Namespace, until

DIGITS = ("--module", "ddp_trainer", "--", "train", "--task", "digits", "--global-batch", "64", "--seed", "0")
SIZE = ("--nnodes", "2", "--nproc", "2", "--cpu", "500m", "--memory", "2Gi", "--shm", "256Mi")


@pytest.mark.timeout(600)
def test_digits_survives_the_loss_of_a_pod_and_loses_no_sample(space: Namespace) -> None:
    """Two nodes with two ranks each, in a namespace that enforces Pod Security ``restricted``."""
    submitted = space.ddp(
        "submit", "--name", "digits", "--image", space.image, *SIZE, "-o", "json", *DIGITS, "--epochs", "20"
    ).ok()
    run_id = submitted.json["runId"]
    space.ddp("wait", "digits", "--for=step=100", "--timeout", "4m").ok()

    (listed,) = space.ddp("list", "-o", "json").ok().json["items"]
    assert (listed["name"], listed["state"], listed["world_size"]) == ("digits", "Running", 4)
    ranks = space.ddp("status", "digits", "--ranks", "-o", "json").ok().json["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert [rank["pod"] for rank in ranks] == ["digits-worker-0"] * 2 + ["digits-worker-1"] * 2
    assert {rank["state"] for rank in ranks} == {"up"}
    assert all(rank["step"] >= 100 for rank in ranks)
    _can_be_seen_from_here(space)

    victim = space.pods()[1]
    assert victim["metadata"]["name"] == "digits-worker-1"
    space.api.delete(space.path("v1", "pods", "digits-worker-1"), uid=victim["metadata"]["uid"])

    def has_successor() -> bool:
        uids = [pod["metadata"]["uid"] for pod in space.pods() if pod["status"]["phase"] == "Running"]
        return len(uids) == 2 and victim["metadata"]["uid"] not in uids

    until("a new pod in the place of the deleted one", has_successor)
    done = space.ddp("wait", "digits", "--for=complete", "--timeout", "8m", seconds=500)
    assert done.code == 0, done.err + space.ddp("status", "digits").out + space.ddp("logs", "digits").out

    state = space.ddp("status", "digits", "-o", "json").ok().json
    summary = state["summary"]
    assert (state["state"], summary["result"]) == ("Succeeded", "succeeded")
    assert summary["accuracy"] >= 0.95
    assert (summary["samples_lost"], summary["samples_repeated"]) == (0, 0)
    assert (summary["steps"], summary["epochs"], summary["world_size"]) == (20 * 23, 20, 4)
    assert sum(summary["restarts"].values()) >= 1

    lines = space.ddp("logs", "digits", "--rank", "all").ok().out.splitlines()
    assert all(pod["metadata"]["labels"][Label.RUN_ID] == run_id for pod in space.pods())
    assert lines, "the pod that is left keeps its lines"
    space.ddp("delete", "digits", "--yes").ok()
    until("nothing left", lambda: not space.left())


def _can_be_seen_from_here(space: Namespace) -> None:
    """Check the table of ranks in ``top``, and a trace of one rank's steps."""
    table = space.ddp("top", "digits", "--once").ok().out.splitlines()
    assert [line.split()[0] for line in table if " digits-worker-" in line] == ["0", "1", "2", "3"]
    file = space.home / "rank3.trace.json.gz"
    space.ddp("profile", "digits", "--rank", "3", "--steps", "3", "--file", str(file)).ok()
    with gzip.open(file) as trace:
        names = [event.get("name", "") for event in json.load(trace)["traceEvents"]]
    assert sum(name.startswith("Optimizer.step#") for name in names) == 3
