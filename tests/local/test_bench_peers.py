"""Every peer of ``bench peers`` trains undisturbed for 20 steps, with each sample once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.harness import Options
from bench.measurements import peers
from bench.peers import page
from bench.peers.fault_run import StepLine, fault_run, recovery_times
from bench.peers.peer import load_peers

STEPS = 20


@pytest.mark.parametrize("name", load_peers())
def test_a_peer_trains_undisturbed(name: str, tmp_path: Path) -> None:
    peer = load_peers()[name]
    if missing := peer.missing():
        pytest.skip(missing)
    weights = tmp_path / "run" / "weights.pt"
    with fault_run(peer, tmp_path / "run", state_megabytes=1, steps=STEPS) as run:
        done = run.wait(lambda _: 1.0 if weights.exists() and _step(weights) == STEPS else None, timeout=150)
        logs = "\n".join(log.read_text()[-2000:] for log in sorted(run.job.folder.glob("*.log")))
        assert done, logs
    state = torch.load(weights, weights_only=True)
    assert (state["lost"], state["repeated"]) == (0, 0)


def _step(weights: Path) -> int:
    return int(torch.load(weights, weights_only=True)["step"])


def test_the_step_of_the_fault_does_not_count_as_recovery() -> None:
    before = [StepLine(10, 1.0, rank, 2, 100 + rank, rank) for rank in (0, 1)]
    outcome = recovery_times(before, 2.0, 2, is_join=False)
    in_flight = [*before, StepLine(11, 2.1, 0, 2, 100, 0)]
    assert outcome(in_flight)["any_seconds"] is None
    restarted = [*in_flight, StepLine(8, 5.0, 0, 2, 200, 0), StepLine(8, 5.5, 1, 2, 201, 1)]
    assert [outcome(restarted)[key] for key in ("any_seconds", "all_seconds", "again_steps")] == [3.0, 3.5, 3]


def _run(peer: str, **figures: object) -> dict[str, object]:
    common = {"fault": "worker_killed", "megabytes": 1, "fast": True, "quick": False, "load": 0.1, "cores": 2}
    return {**common, "peer": peer, **figures}


def test_a_fault_that_the_documents_of_a_peer_exclude_is_injected_once() -> None:
    cells = peers.plan_runs(Options(only=frozenset({"torchft"})))
    assert [cell.fast for cell in cells if cell.fault == "rank_hung"] == [True]
    assert [cell.fast for cell in cells if cell.fault == "node_killed"] == [True] * peers.REPEATS + [False]


def test_the_page_first_names_what_a_peer_does_better() -> None:
    runs = [
        _run("torchft", any_seconds=0.5, all_seconds=4.0),
        _run("ours_elastic", any_seconds=1.0, all_seconds=2.0),
        _run("ours_plain", any_seconds=1.0, all_seconds=2.0),
    ]
    first = page.render_markdown(runs, load_peers()).partition("## Seconds")[0]
    assert "|torchft|elastic.run|worker killed, 1 MB, any rank, s: 0.5/1|" in first
    assert "all ranks" not in first
    assert "elastic.run" in page.recovery_svg(runs, load_peers())


def test_a_peer_without_a_change_of_the_script_is_compared_with_both_of_ours() -> None:
    runs = [
        _run("torchrun", all_seconds=1.0),
        _run("ours_plain", all_seconds=2.0),
        _run("ours_elastic", all_seconds=2.0),
    ]
    assert [row.split("|")[2] for row in page.better_peer_rows(runs, load_peers())] == ["ddp-launch", "elastic.run"]


def test_the_page_says_so_where_only_a_peer_survives() -> None:
    runs = [_run("torchft", all_seconds=4.0), _run("ours_elastic", all_seconds=None)]
    assert any(f"all ranks, s: 4/{page.NONE}|" in row for row in page.better_peer_rows(runs, load_peers()))


def test_the_page_says_so_where_a_peer_alone_survives_with_default_settings() -> None:
    runs = [_run("torchft", fast=False, all_seconds=4.0), _run("ours_elastic", fast=False, all_seconds=None)]
    rows = page.better_peer_rows(runs, load_peers())
    assert any(f"default settings, all ranks, s: 4/{page.NONE}|" in row for row in rows)


def test_a_cell_names_the_runs_that_recovered_unless_all_did() -> None:
    whole = [_run("torchft", all_seconds=float(number)) for number in range(peers.REPEATS)]
    assert page.format_cell(whole, [], ()) == f"2<br>(0{page.NONE}4)"
    assert page.format_cell([*whole, _run("torchft", all_seconds=None)], [], ()).endswith("<br>5/6")
    notes: list[str] = []
    assert page.format_cell([_run("torchft", cannot="why")], notes, ("why",)) == f"{page.NONE}[1](#method)"
    assert notes == ["why"]


def test_the_page_is_as_generated() -> None:
    runs, known = page.read_results(), load_peers()
    assert (page.DOCS / "peers.md").read_text() == page.render_markdown(runs, known)
    assert (page.DOCS / "assets" / "peers.svg").read_text() == page.recovery_svg(runs, known)
    assert (page.DOCS / "assets" / "peers.txt").read_text() == page.peer_settings(known)
