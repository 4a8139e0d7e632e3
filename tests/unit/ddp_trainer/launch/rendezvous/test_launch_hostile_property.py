"""A peer with the secret and arbitrary messages: it cannot end, block or outlive the run of two others.

``DDP_HOSTILE_SEQUENCES=100000 python -m pytest
tests/unit/ddp_trainer/launch/rendezvous/test_launch_hostile_property.py`` tries more of them.
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import given, settings

from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.generation import Assignment, Node
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_failure, a_policy

SEQUENCES = int(os.environ.get("DDP_HOSTILE_SEQUENCES", "1500"))

NUMBERS = st.sampled_from([0, 1, 2, 3, 1 << 31, (1 << 53) - 1])
RANKS = st.integers(0, 5)
FAILURES = st.builds(
    lambda generation, rank, code: a_failure(generation, rank=rank, exit_code=code),
    NUMBERS, RANKS, st.sampled_from([0, 1, 93, 143, 171, 255]),
)  # fmt: skip
NODES = st.builds(
    lambda name, index, token: Node(token=token, name=name, index=index, local_world_size=2, address="10.9.9.9"),
    st.sampled_from(["worker-0", "worker-1", "worker-2", ""]),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from(["stranger", "unknown-1-0", "token-99"]),
)
CLAIMS = st.builds(
    lambda number, fence, rank, count: Assignment(
        number=number, fence=fence, node_rank=rank, node_count=count, first_rank=2 * rank, world_size=4,
        role_first_rank=0, role_world_size=4, master_address="10.9.9.9", master_port=1, restarts={"failure": 10**6},
    ),
    NUMBERS, st.sampled_from([0, 1, 1_000_000_000_000, 1_000_000_003_000, (1 << 53) - 1]), RANKS, st.integers(1, 9),
)  # fmt: skip
HELLOS = st.builds(
    lambda node, last, standing, policy, identity, joins_preflight, clock: messages.Hello(
        version=messages.VERSION, run_id="run", node=node, policy=policy, standing=standing, last=last,
        identity=identity, joins_preflight=joins_preflight, clock=clock,
    ),
    NODES, st.none() | CLAIMS, st.sampled_from(list(messages.WorkerState)),
    st.sampled_from([a_policy(2, 2), a_policy(1, 9), messages.Policy(min_nodes=0, max_nodes=0, max_restarts=0)]),
    st.sampled_from([None, messages.ProgramIdentity(program="other.py", path="/other.py", digest="0")]),
    st.booleans(), st.sampled_from([0.0, 1e9, 1e12]),
)  # fmt: skip
STATUSES = st.builds(
    lambda generation, ranks: messages.RankStates(
        generation=generation,
        ranks=tuple(
            RankStatus(rank=rank, local_rank=0, node="worker-0", state=RankState.STOPPED, seconds=1e6, limit=1.0)
            for rank in ranks
        ),
    ),
    NUMBERS, st.lists(RANKS, max_size=4),
)  # fmt: skip
MESSAGES = st.one_of(
    HELLOS,
    st.builds(
        lambda prepared, importing: messages.Join(port=1, is_prepared=prepared, is_importing=importing),
        st.booleans(),
        st.booleans(),
    ),
    st.just(messages.WorkerImports(modules=("torch",))),
    st.builds(lambda failure, agreed: messages.Failed(failure=failure, agreed=agreed), FAILURES, st.booleans()),
    st.just(messages.Leave(has_left=True)),
    st.builds(lambda number: messages.Succeeded(generation=number, summary="[" * 4096), NUMBERS),
    st.builds(lambda number: messages.StandBy(generation=number), NUMBERS),
    st.builds(lambda able: messages.ReusableWorkers(able=able), st.booleans()),
    st.builds(lambda number: messages.SuspectHang(generation=number), NUMBERS),
    st.builds(lambda number, fit: messages.PreflightResult(number=number, fit=fit), NUMBERS, st.booleans()),
    st.just(messages.Ping()),
    STATUSES,
)
STEPS = st.lists(
    st.tuples(st.sampled_from([9001, 9002]), MESSAGES | st.sampled_from(["wait", "break", "blip"])),
    min_size=1,
    max_size=12,
)


def take(run: SimulatedRun, honest: list[SimulatedAgent], peer: int, step: messages.FromAgent | str) -> None:
    match step:
        case "wait":
            run.wait(3.0)
        case "break":
            run.membership.lost(peer)
        case "blip":
            honest[peer % 2].mark_disconnected()
            run.reconnect(honest[peer % 2])
        case _:
            run.membership.handle_and_reconcile(peer, step)


@given(STEPS)
@settings(max_examples=SEQUENCES, deadline=None)
def test_no_messages_of_a_stranger_end_block_or_outlive_an_honest_run(
    steps: list[tuple[int, messages.FromAgent | str]],
) -> None:
    run = SimulatedRun(a_policy(2, 2))
    run.now = 3.0
    honest = run.joined(0, 1)
    for peer, step in steps:
        take(run, honest, peer, step)
        assert [(agent.runs, agent.asked_to_stop) for agent in honest] == [(1, None)] * 2
    for agent in honest:
        agent.succeed()
    for agent in honest:
        assert (agent.last.verdict, agent.last.exit_code) == (messages.Verdict.SUCCEEDED, 0)
        agent.leave()
    assert run.membership.end.has_parted


@given(STEPS)
@settings(max_examples=SEQUENCES // 3, deadline=None)
def test_a_failure_causes_a_restart_whatever_a_stranger_does(steps: list[tuple[int, messages.FromAgent | str]]) -> None:
    run = SimulatedRun(a_policy(2, 2))
    run.now = 3.0
    honest = run.joined(0, 1)
    for peer, step in steps:
        take(run, honest, peer, step)
    honest[1].fail()
    for agent in reversed(honest):
        agent.join()
    assert {agent.runs for agent in honest} == {run.starts[-1].number}
    assert run.starts[-1].restarts == {"failure": 1}
    assert run.starts[-1].fence > run.starts[0].fence
