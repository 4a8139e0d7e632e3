"""Tables and words."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import yaml

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.job_tables import job_table, job_to_dict, rank_table
from kubectl_ddp.status.metrics_parser import parse
from kubectl_ddp.util.text_table import Cell, Style, Table
from kubectl_ddp.util.yaml_text import to_yaml
from tests.support import kube_objects
from tests.support.kube_objects import CREATED_EPOCH, job, pod, pod_metrics, rank_metrics, snapshot, terminated

NOW = CREATED_EPOCH + 90


def a_state() -> JobState:
    ranks = "".join(rank_metrics(rank, last_step=NOW - 3) for rank in range(2))
    samples = {"digits-worker-0": parse(pod_metrics(restarts=1) + kube_objects.job_metrics() + ranks)}
    return job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples, where="local")


def test_ranks_of_a_layout_have_their_places_in_it() -> None:
    samples = {"digits-worker-0": parse(pod_metrics() + rank_metrics(0, place='replicate="0",pp="",shard="1",tp=""'))}
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples, where="local")
    header, of_rank, silent = (line.split() for line in rank_table(state, NOW).render(Style()).splitlines())
    assert header[:4] == ["RANK", "MESH", "POD", "NODE"]
    assert of_rank[:5] == ["0", "r0", "s1", "digits-worker-0", "node-0"]
    assert silent[:5] == ["-", "-", "digits-worker-1", "-", "silent"]
    assert "MESH" not in rank_table(a_state(), NOW).render(Style())


def cells(line: str) -> str:
    """The cells of a line, one space apart."""
    return " ".join(line.split())


def test_a_job_is_one_row() -> None:
    titles, row = map(cells, job_table([a_state()], NOW).render(Style()).splitlines())
    assert titles == "NAME STATUS READY STEP PROGRESS ETA THROUGHPUT RESTARTS DURATION AGE WHERE"
    assert row == "digits Running 2/2 (1-4) 10 10% 18s 320/s 1 - 90s local"


def test_what_nobody_told_is_a_dash() -> None:
    row = job_table([job_state(snapshot(job()), {})], NOW).render(Style()).splitlines()[1]
    assert cells(row) == "digits Pending 0/2 (1-4) - - - - 0 - 90s"


def test_ranks_and_silent_pods_are_rows() -> None:
    first, _, silent = map(cells, rank_table(a_state(), NOW).render(Style()).splitlines()[1:])
    assert first == "0 digits-worker-0 node-0 up 10 160 forward 50% backward 50% 3s ago"
    assert silent == "- digits-worker-1 - silent - - - -"


def test_a_pipe_gets_every_letter_and_a_narrow_terminal_does_not() -> None:
    table = Table(("NAME", "WHY"), [[Cell("a" * 50), Cell("b" * 60)]])
    assert "b" * 60 in table.render(Style())
    narrow = table.render(Style(width=60)).splitlines()
    assert max(map(len, narrow)) == 60
    assert "…" in narrow[1]


def test_color_is_added_and_never_the_only_signal() -> None:
    table = job_table([a_state()], NOW)
    colored = table.render(Style(color=True))
    assert "\033[32mRunning\033[0m" in colored
    assert re.sub("\033\\[(32|1|0)m", "", colored) == table.render(Style())


def test_status_shows_the_first_error_and_restarts_by_cause() -> None:
    error = {"rank": 2, "pod": "digits-worker-1", "message": "ValueError: no", "restarts": {"failure": 3, "hang": 1}}
    text = header(job_state(snapshot(job("Created", "Failed"), pod(1, terminated(1, error))), {}), NOW, Style())
    assert "First error: rank 2 on digits-worker-1: ValueError: no" in text
    assert "Restarts:    4 (failure 3, hang 1)" in text


def test_status_shows_where_the_time_of_a_failed_job_went_beside_its_error() -> None:
    spent = {"goodput": 0.61, "largest_badput": "checkpoint_load", "lost_steps": 7, "lost_seconds": 3.0, "seconds": 90}
    ending = {"rank": 1, "message": "ValueError: no", "result": "failed", "restarts": {"failure": 2}, **spent}
    failed = job_state(snapshot(job("Created", "Failed"), pod(0, terminated(1, ending))), {})
    assert failed.summary == {"result": "failed", "restarts": {"failure": 2}, **spent}
    text = header(failed, NOW, Style())
    line = "2 restarts, 7 steps done again, goodput 61%, most of the rest checkpoint load, 90s in all"
    assert f"Summary:     {line}" in text
    assert "First error: rank 1 on digits-worker-0: ValueError: no" in text


DONE = {"result": "succeeded", "accuracy": 0.975, "goodput": 0.8123, "seconds": 12.6, "loss": 0.1, "steps": 690}
DONE |= {"samples_lost": 0, "samples_repeated": 0, "restarts": {"failure": 1, "resize": 2}}


@pytest.mark.parametrize(
    ("summary", "line"),
    [
        (DONE, "accuracy 0.975, 690 steps, 0 samples lost, 0 repeated, 1 restart, 2 resizes, goodput 81%, 12s in all"),
        ({"result": "succeeded", "restarts": {}, "seconds": 1.0}, "0 restarts, 1s in all"),
        ({"accuracy": "high", "restarts": [1], "goodput": None, "steps": 3}, "3 steps"),
    ],
    ids=["the trainer's", "the launcher's", "somebody's"],
)
def test_status_shows_what_matters_of_the_summary(summary: dict[str, object], line: str) -> None:
    succeeded = snapshot(job("Created", "Succeeded"), pod(0, terminated(0, summary)))
    assert header(job_state(succeeded, {}), NOW, Style()).splitlines()[-1] == f"Summary:    {line}"


def test_the_document_of_a_job_holds_plain_values_only() -> None:
    document = job_to_dict(a_state())
    assert yaml.safe_load(to_yaml([document])) == json.loads(json.dumps(document))


def test_jobs_of_all_namespaces_are_told_apart_by_theirs_which_comes_first() -> None:
    for wide in (False, True):
        header, row = job_table([a_state()], NOW, wide=wide, namespaced=True).render(Style()).splitlines()
        assert header.split()[:2] == ["NAMESPACE", "NAME"]
        assert (header.split().count("NAMESPACE"), row.split()[1]) == (1, "digits")


def test_the_wide_table_says_what_share_of_the_time_trained() -> None:
    states = [replace(a_state(), goodput=0.934), a_state()]
    header, well, unknown = job_table(states, NOW, wide=True).render(Style()).splitlines()
    column = header.index("GOODPUT")
    assert (well[column:].split()[0], unknown[column:].split()[0]) == ("93%", "-")


def test_a_job_of_torchrun_shows_a_dash_for_what_its_ranks_do_not_report() -> None:
    of_torchrun = job("Created", "Running", metadata={"annotations": {Annotation.SPEC: '{"launcher":"torchrun"}'}})
    state = job_state(snapshot(of_torchrun, pod(0), pod(1)), {}, where="local")
    assert (state.uses_torchrun, state.silent, state.startup) == (True, (), None)
    assert "Restarts: -" in [" ".join(line.split()) for line in header(state, NOW, Style()).splitlines()]
    titles, row = (line.split() for line in job_table([state], NOW).render(Style()).splitlines())
    cells = dict(zip(titles, [*row[:2], " ".join(row[2:4]), *row[4:]], strict=True))
    assert [cells[title] for title in ("READY", "STEP", "THROUGHPUT", "RESTARTS")] == ["2/2 (1-4)", "-", "-", "-"]
