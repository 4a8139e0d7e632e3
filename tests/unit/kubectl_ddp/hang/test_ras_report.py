"""Ranks that are behind, parsed from NCCL's report of its communicators."""

from __future__ import annotations

from pathlib import Path

from kubectl_ddp.hang.ras_report import lagging_ranks

REPORT = (Path(__file__).parents[3] / "samples" / "nccl_ras_status.txt").read_text()


def test_ranks_that_are_behind_are_read_from_both_forms() -> None:
    found = lagging_ranks(REPORT)
    assert [(lag.communicator, lag.rank, lag.launched, lag.most) for lag in found] == [
        *(("0-0", rank, 6649, 6650) for rank in (0, 2, 3, 4, 5, 7)),
        ("1-0", 7, 60, 64),
    ]
    assert found[-1].message == (
        "NCCL: rank 7 of communicator #1-0 (GPU 3, process 1650386, node node1) has launched 60 operations, others 64"
    )


def test_a_rank_that_is_ahead_is_not_behind() -> None:
    report = (
        "#0-0 (1a) MISMATCH\n  7 ranks have launched up to operation 4\n"
        "  Rank 1 has launched up to operation 5 -- GPU 1 managed by process 9 on node a\n"
    )
    assert lagging_ranks(report) == []
    none = report.replace("has launched up to operation 5", "has not launched any operations")
    assert [lag.launched for lag in lagging_ranks(none)] == [0]


def test_what_is_no_report_names_nobody() -> None:
    assert lagging_ranks("") == lagging_ranks("Rank 1 -- GPU 1 managed by process 9 on node a") == []
    assert lagging_ranks("#0-0 (1a2b) INCOMPLETE\n  Missing communicator data from 1 job process\n") == []
