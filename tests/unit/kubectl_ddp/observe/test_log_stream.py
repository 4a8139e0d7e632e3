"""Choosing and following lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.log_stream import Line, follow_logs, rank_filter, read
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.util.concurrency import Stop
from tests.support.kube_objects import job, pod, running, snapshot, terminated
from tests.support.scripted_backend import ScriptedBackend
from tests.support.threads import no_thread_left

TRACE = [
    "[rank3] Traceback (most recent call last):",
    '[rank3]   File "train.py", line 3, in <module>',
    "[rank3]     raise ValueError(1)",
    "[rank3] ValueError: 1",
]


def chosen(text: str | None, *lines: str) -> list[str]:
    wanted = rank_filter(text, None)
    ranks = {f"[rank{rank}]": rank for rank in range(10)}
    return [line for line in lines if wanted.matches(Line("", "p", ranks.get(line.split()[0]), line))]


def test_rank_0_and_the_errors_of_any_are_shown_by_default() -> None:
    after = ("ddp-launch: generation 1", "[rank2] ERROR disk")
    found = chosen(None, "[rank0] loss 1", "[rank3] loss 1", *TRACE, "[rank3] bye", *after)
    assert found == ["[rank0] loss 1", *TRACE, *after]


@pytest.mark.parametrize(
    ("text", "expected"), [("0", "0"), ("1-2", "12"), ("0,3", "03"), ("0-1,3", "013"), ("all", "0123")]
)
def test_ranks_are_chosen_by_number_and_range(text: str, expected: str) -> None:
    assert chosen(text, *(f"[rank{rank}] x" for rank in range(4))) == [f"[rank{rank}] x" for rank in expected]


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "0-", "1,,2", "0x1"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no ranks"):
        rank_filter(text, None)


def test_a_rank_that_the_job_can_never_have_is_not_found() -> None:
    state = job_state(snapshot(job("Created", "Running", bounds=(1, 4))), {})
    assert rank_filter("7", state).ranks == {7}
    assert rank_filter("4-99", state).ranks is not None
    with pytest.raises(NotFound, match=r"Job 'digits' has no rank 8\. It can have ranks 0 to 7\."):
        rank_filter("8", state)


def test_the_failed_ranks_are_all_that_pods_tell_of_and_not_the_first_alone() -> None:
    def ended(rank: int | None, second: float, code: int = 1) -> dict[str, Any]:
        return terminated(code, {"rank": rank, "message": "ValueError: 1", "timestamp": second})

    pods = (pod(0, ended(5, 2.0)), pod(1, ended(2, 1.0)), pod(2, ended(None, 3.0)), pod(3, ended(7, 4.0, code=0)))
    state = job_state(snapshot(job("Created", "Failed"), *pods), {})
    assert state.first_error is not None
    assert state.first_error.rank == 2
    assert rank_filter("failed", state).ranks == {2, 5}, "a pod that succeeded did not stop the run"
    with pytest.raises(NotFound, match="No rank of job 'digits' is known to have failed"):
        rank_filter("failed", job_state(snapshot(job("Created")), {}))


def stamped(*texts: str, second: int = 0, first: int = 0) -> list[str]:
    return [f"2026-01-02T03:04:{second:02}.{first + at:09}Z {text}" for at, text in enumerate(texts)]


class Leaving(ScriptedBackend):
    """Its pods go away between the look at the job and the look at their lines."""

    left: frozenset[str] = frozenset()

    def logs(self, pod: Object, **wanted: Any) -> Iterator[str]:
        if pod["metadata"]["name"] in self.left:
            raise NotFound(f"{pod['metadata']['name']} is gone")
        yield from super().logs(pod, **wanted)


def test_a_pod_that_goes_away_meanwhile_leaves_the_lines_of_the_others_and_all_are_missed() -> None:
    pods = [pod(0), pod(1)]
    backend = Leaving([snapshot(job("Succeeded"), *pods)], logs={"pod-worker-1/0": stamped("[rank1] b", second=2)})
    backend.left = frozenset({pods[0]["metadata"]["name"]})
    assert [line.text[-1] for line in read(backend, "digits", rank_filter("all", None))] == ["b"]
    backend.left = frozenset(item["metadata"]["name"] for item in pods)
    with pytest.raises(NotFound, match="is gone"):
        list(read(backend, "digits", rank_filter("all", None)))


def test_following_reads_each_container_once_and_drops_what_comes_again() -> None:
    # The kubelet forgets the first container's lines; a new pod of the same name begins within the same second.
    logs = {
        "pod-worker-0/0": stamped("one", "two"),
        "pod-worker-0/1": stamped("three", first=5) + stamped("four", second=1),
        "new/0": stamped("five", second=1, first=1),
    }
    over = snapshot(job("Created", "Succeeded"), pod(0, terminated(0), uid="new"))
    pods = (pod(0), pod(0), pod(0, restarts=1), pod(0, uid="new"))
    moments = [*(snapshot(job("Created", "Running"), one) for one in pods), over]
    for upto in range(len(moments), 2, -1):  # a slow watcher may miss moments, and must not read anything twice
        backend = ScriptedBackend([*moments[: upto - 1], over], logs=logs)
        texts = [line.text for line in follow_logs(backend, "digits", ranks=rank_filter("all", None))]
        assert texts[:2] == ["one", "two"]
        assert texts[-1] == "five"
        assert len(texts) == len(set(texts))


def test_following_since_a_time_leaves_out_the_older_lines_of_pods_that_are_silent_since() -> None:
    logs = {
        "pod-worker-0/0": stamped("[rank0] old"),
        "pod-worker-1/0": stamped("[rank1] old") + stamped("[rank1] new", second=9),
        "pod-worker-2/0": stamped("[rank2] old", first=5),  # in the second of the time, and before it
    }
    moments = [snapshot(job("Created", state), *(pod(at) for at in range(3))) for state in ("Running", "Succeeded")]
    backend = ScriptedBackend(moments, logs=logs)
    (since,) = (line.partition(" ")[0] for line in stamped("", first=500_000_000))
    found = follow_logs(backend, "digits", rank_filter("all", None), since=since)
    assert [line.text for line in found] == ["[rank1] new"]


def test_following_that_is_abandoned_leaves_no_thread_behind() -> None:
    written = {"pod-worker-0/0": stamped(*map(str, range(30_000)))}  # more than a reader may be ahead
    moments = [snapshot(job("Created", "Running")), snapshot(job("Created", "Running"), pod(0, running()))]
    with no_thread_left():
        lines = follow_logs(ScriptedBackend(moments, logs=written), "digits", rank_filter("all", None))
        assert [next(lines).text, next(lines).text] == ["0", "1"]
        lines.close()


class Endless(ScriptedBackend):
    """A pod that writes until nobody reads."""

    def logs(self, pod: Object, *, stop: Stop | None = None, **_: object) -> Iterator[str]:
        while stop is not None and not stop.is_requested:
            yield from stamped("again")


@pytest.mark.parametrize(("backend", "is_silent"), [(Endless, False), (ScriptedBackend, True)])
def test_following_a_job_that_does_not_end_is_over_when_its_time_is(
    backend: type[ScriptedBackend], is_silent: bool
) -> None:
    moments = [snapshot(job("Created", "Running")), snapshot(job("Created", "Running"), pod(0, running()))]
    with no_thread_left():
        lines = list(follow_logs(backend(moments), "digits", rank_filter("all", None), timeout=0.3))
    assert (lines == []) is is_silent


def test_a_suspended_job_has_the_lines_of_its_ended_pods_where_they_are_kept() -> None:
    class Place(ScriptedBackend):
        def deleted_pods(self, name: str) -> list[Object]:
            return [pod(0)]

    suspended = snapshot(job("Suspended", run_policy={"suspend": True}))
    stored = {"pod-worker-0/0": ["2026-01-01T00:00:01Z [rank0] saved"]}
    found = read(Place([suspended], logs=stored), "digits", rank_filter("all", None))
    assert [line.text for line in found] == ["[rank0] saved"]
    assert list(read(ScriptedBackend([suspended], logs=stored), "digits", rank_filter("all", None))) == []
