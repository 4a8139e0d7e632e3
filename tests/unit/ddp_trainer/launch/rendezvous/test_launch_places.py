"""Place of a failed rank in the layout of its job, in the messages of its launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch import failures
from ddp_trainer.launch.agent.termination_report import TerminationReport
from ddp_trainer.launch.failures import FailureBuilder
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.generation import Generation, Node
from tests.support.launch_simulation import place_of

NODES = tuple(Node(token=f"t{index}", name=f"worker-{index}", local_world_size=2) for index in range(2))
GROUP = place_of(Generation(number=1, fence=1, nodes=NODES, master_address="10.0.0.1", master_port=1), "t1")
"""Place of the second of two nodes with two workers each."""


def a_builder(parallel: str) -> FailureBuilder:
    environment = {Env.PARALLEL: parallel, Env.NODE_NAME: "worker-1"}
    return FailureBuilder("worker-1", environment, lambda *_: Path("/nonexistent"))


@pytest.mark.parametrize(
    ("parallel", "who"),
    [
        ("", "Rank 3 on worker-1"),
        ("replicate=1:2,shard=2", "Rank 3 (replicate 1, shard 1) on worker-1"),
        ("tp=2,pp=2", "Rank 3 (pp 1, tp 1) on worker-1"),
        ("shard=8", "Rank 3 on worker-1"),
        ("nonsense", "Rank 3 on worker-1"),
    ],
)
def test_the_first_error_names_the_place_of_its_rank(parallel: str, who: str, tmp_path: Path) -> None:
    failure = a_builder(parallel).ended(GROUP, 1, 1)
    assert failures.final_message(Finish(1, failure=failure)).startswith(f"{who} failed first")
    message = tmp_path / "message"
    TerminationReport({Env.TERMINATION_LOG: str(message)}).failed(failure, 1, {})
    place = json.loads(message.read_text()).get("place", "")
    assert who == f"Rank 3{f' ({place})' if place else ''} on worker-1"


def test_the_layout_of_the_workers_precedes_that_of_the_environment() -> None:
    builder = a_builder("shard=4")
    builder.parallel = "tp=2,pp=2"
    assert builder.ended(GROUP, 1, 1).place == "pp 1, tp 1"
