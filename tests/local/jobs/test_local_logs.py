"""Lines of local jobs, through restarts."""

from __future__ import annotations

from kubectl_ddp.observe.log_stream import follow_logs, rank_filter, read
from tests.support.local_place import Place, workers


def counting(place: Place, lives: int, ending: str) -> str:
    """Each life writes the next ten numbers, and all but the last end badly."""
    return f"""f={place.state}/$HOSTNAME; n=$(cat $f 2>/dev/null || echo 0); echo $((n + 10)) > $f
        i=0; while [ $i -lt 10 ]; do echo "[rank0] $HOSTNAME $((n + i))"; i=$((i + 1)); done
        [ $n -lt {(lives - 1) * 10} ] && {ending}; exit 0"""


def test_following_goes_on_through_restarts_and_no_line_comes_twice_or_is_lost(place: Place) -> None:
    place.run(counting(place, 3, "kill -9 $$"), replicas=2, bounds=None)
    lines = [line.text for line in follow_logs(place, "digits", ranks=rank_filter("all", None))]
    for pod in ("digits-worker-0", "digits-worker-1"):
        assert [line for line in lines if pod in line] == [f"[rank0] {pod} {number}" for number in range(30)]


def test_following_begins_with_the_last_lines_and_goes_on(place: Place) -> None:
    place.run(
        f"touch {place.state}/said; echo old; echo new; while [ -e {place.state}/said ]; do sleep 0.05; done; echo end"
    )
    pods = workers(place.until(lambda shown: len(workers(shown)) == 2))
    for pod in pods:
        stream = place.logs(pod, follow=True)
        assert [next(stream), next(stream)] == ["old", "new"]
    following = follow_logs(place, "digits", ranks=rank_filter("all", None), tail=1)
    assert next(following).text == "new"
    (place.state / "said").unlink()
    assert "end" in [line.text for line in following]


def test_reading_puts_the_lines_of_all_pods_in_their_order(place: Place) -> None:
    place.run("for i in 1 2 3; do echo [rank0] $HOSTNAME $i; sleep 0.01; done", bounds=None, policy="Never")
    place.ended()
    lines = list(read(place, "digits", rank_filter("all", None)))
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert len(lines) == 6
    assert [line.text for line in read(place, "digits", rank_filter("all", None), tail=2)] == [
        line.text for line in lines[-2:]
    ]


def test_a_line_without_an_end_is_a_line_and_long_ones_are_whole(place: Place) -> None:
    place.run("head -c 50000 /dev/zero | tr '\\0' x; echo; printf 'no end'", replicas=1)
    place.ended()
    assert place.lines() == ["x" * 50_000, "no end"]
