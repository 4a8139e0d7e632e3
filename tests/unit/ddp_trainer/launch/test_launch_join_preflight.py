"""The preflight of a joining node, with real processes: which result counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AGENT = """
import asyncio, os, pathlib, sys
from ddp_trainer.launch.agent import node_checks
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.agent.agent_state import AgentStateMachine, Limits
from ddp_trainer.launch.agent.preflight_policy import PreflightPolicy, Preflight
from ddp_trainer.launch.host.endpoint import reserve_port
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.protocol.messages import VERSION, Hello, RunPreflight, Policy, WorkerState
from tests.support.launch_simulation import place_of

other, own = (Node(token=name, name=name, local_world_size=1, address="127.0.0.1") for name in ("other", "own"))
policy = Policy(min_nodes=1, max_nodes=2, max_restarts=0)
hello = Hello(version=VERSION, run_id="r", node=own, policy=policy, standing=WorkerState.IDLE)

class Watched(Children):
    ends = 0

    def add_child_handler(self, pid, ended):
        super().add_child_handler(pid, ended)
        self._owners[pid] = lambda code: (ended(code), setattr(self, "ends", self.ends + 1))

    async def have_ended(self, count):
        while self.ends < count:
            await asyncio.sleep(0.01)

async def main():
    children = Watched(asyncio.get_running_loop())
    preflight = Preflight(children, PreflightPolicy.STRICT, 1, "", pathlib.Path(sys.argv[1]), os.environ)
    core = AgentStateMachine(hello=hello, limits=Limits(), endpoint="")
    held = node_checks.JoinPreflight(core, preflight, lambda _: {}, print, lambda _: None)
    with reserve_port() as port:
        port = port.getsockname()[1]
        group = Generation(number=0, fence=0, nodes=(other, own), master_address="127.0.0.1", master_port=port)
        # The other node never comes.
        ask = RunPreflight(number=1, names=("other", "own"), place=place_of(group, own.token))
        {body}

asyncio.run(main())
"""


def sent(tmp_path: Path, body: str) -> str:
    """Return the messages of an agent to its store."""
    command = [sys.executable, "-c", AGENT.replace("{body}", body.strip()), str(tmp_path)]
    return subprocess.check_output(command, text=True, timeout=60)


def test_the_result_of_a_preflight_for_an_earlier_store_does_not_count_for_the_next(tmp_path: Path) -> None:
    body = """
        held.on_message(ask)
        held.on_message(ask)  # of a store that was restarted, and numbers from one
        await children.have_ended(1)
        print("one has ended")
        held.end()  # there is a group, which needs the port
        await children.have_ended(2)
    """
    assert sent(tmp_path, body) == "one has ended\n"


def test_a_preflight_that_does_not_end_is_killed_and_the_node_is_not_fit(tmp_path: Path) -> None:
    body = """
        node_checks.LONGEST_SECONDS = 0.1
        held.on_message(ask)
        await children.have_ended(1)
        assert core.unfit == "The preflight ended with -9 and without a result", core.unfit
    """
    assert sent(tmp_path, body) == "PreflightResult(number=1, fit=False)\n"
