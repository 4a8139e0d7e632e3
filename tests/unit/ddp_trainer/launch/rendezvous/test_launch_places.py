"""Where a rank that failed stands in the layout of its job, as its launcher tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch import failures
from ddp_trainer.launch.agent.agent_state import AgentStateMachine, Limits
from ddp_trainer.launch.agent.termination_report import FailureBuilder, TerminationReport
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.protocol.messages import VERSION, Hello, WorkerState
from tests.support.launch_simulation import a_policy, place_of


def witness(parallel: str) -> FailureBuilder:
    """Of the second of two nodes with two workers each."""
    nodes = tuple(Node(token=f"t{index}", name=f"worker-{index}", local_world_size=2) for index in range(2))
    hello = Hello(version=VERSION, run_id="run", node=nodes[1], policy=a_policy(), standing=WorkerState.IDLE)
    core = AgentStateMachine(hello=hello, limits=Limits(), endpoint="store:29400")
    group = Generation(number=1, fence=1, nodes=nodes, master_address="10.0.0.1", master_port=1)
    core.generation = place_of(group, "t1")
    return FailureBuilder(core, {Env.PARALLEL: parallel, Env.NODE_NAME: "worker-1"}, lambda *_: Path("/nonexistent"))


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
    failure = witness(parallel).ended(1, 1)
    assert failures.final_message(Finish(1, failure=failure)).startswith(f"{who} failed first")

    message = tmp_path / "message"
    TerminationReport({Env.TERMINATION_LOG: str(message)}).failed(failure, 1, {})
    place = json.loads(message.read_text()).get("place", "")
    assert who == f"Rank 3{f' ({place})' if place else ''} on worker-1"


def test_what_workers_say_they_train_by_goes_before_the_environment() -> None:
    told = witness("shard=4")
    told.parallel = "tp=2,pp=2"
    assert told.ended(1, 1).place == "pp 1, tp 1"
