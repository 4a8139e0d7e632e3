"""Several launchers and a store: what happens when any of them dies."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

from ddp_trainer.common.constants import Env
from tests.support.launch_harness import LOOP, STORE, Running, Stage, is_alive, wait_until
from tests.support.ports import free_port

HOST = socket.gethostname()


def running(agent: Running, generation: int, world: int) -> list[int]:
    """Process ids of the workers of an agent, when they run in this generation."""
    return [int(agent.line(rf"generation={generation} world={world} pid=(\d+) runs")[1])]


def start(stage: Stage, *indices: int, nnodes: str = "2", **env: str) -> list[Running]:
    # Those that come together are one group from the start, however far apart a busy machine lets them arrive.
    program = ["--rdzv-conf", f"settle_timeout={20 if len(indices) > 1 else 1}", stage.script(LOOP), stage.done()]
    return [stage.agent(index, *program, nnodes=nnodes, **env) for index in indices]


def test_ranks_follow_the_pods_and_not_who_came_first(stage: Stage) -> None:
    stage.store()
    (late,) = start(stage, 10)
    late.line(r"1 node ready \(worker-10\), missing: worker-0, worker-1, waiting")
    (early,) = start(stage, 2)
    early.line("rank=0 generation=1 world=2")
    late.line("rank=1 generation=1 world=2")


def test_a_killed_node_leaves_a_smaller_world_and_comes_back_to_it(stage: Stage) -> None:
    store = stage.store("--linger-seconds", "0.2")
    survivor, victim = start(stage, 0, 1, nnodes="1:2")
    (orphan,) = running(victim, 1, 2)
    running(survivor, 1, 2)
    victim.send(signal.SIGKILL)
    running(survivor, 2, 1)
    assert not is_alive(orphan)
    (again,) = start(stage, 1, nnodes="1:2")
    running(survivor, 3, 2)
    running(again, 3, 2)
    stage.finish()
    assert [survivor.code(), again.code()] == [0, 0]
    assert "rank=0 generation=2 stops" in survivor.lines
    assert 'restarts={"resize": 2}' in survivor.output
    assert store.code() == 0


def test_a_node_that_is_told_to_stop_lets_everybody_finish_and_go_on_without_it(stage: Stage) -> None:
    stage.store()
    first, second = start(stage, 0, 1, nnodes="1:2")
    running(first, 1, 2)
    running(second, 1, 2)
    second.send(signal.SIGTERM)
    assert second.code() == 143
    running(first, 2, 1)
    assert "rank=0 generation=1 stops" in first.lines
    assert "rank=1 generation=1 stops" in second.lines


def test_a_run_goes_on_and_completes_whenever_its_store_is_away(stage: Stage) -> None:
    store = stage.store()
    agents = start(stage, 0, 1)
    workers = [running(agent, 1, 2)[0] for agent in agents]
    store.send(signal.SIGKILL)
    store.code()
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: not is_alive(workers[0]), "the worker lives")
    assert is_alive(workers[1])
    store = stage.store()
    # The worker is only replaced when both agents have found the new store, which knows the run from them.
    for agent in agents:
        running(agent, 2, 2)
    store.send(signal.SIGKILL)
    store.code()
    stage.finish()
    for agent in agents:
        agent.line("generation=2 done")
    stage.store("--linger-seconds", "0.2")
    assert [agent.code() for agent in agents] == [0, 0]


def test_a_silent_network_is_noticed(stage: Stage) -> None:
    """A stopped process is what a cut cable looks like from the other end: no word, and no goodbye."""
    stage.store("--heartbeat-timeout", "2", "--first-seconds", "20")
    program = ["--rdzv-conf", "keep_alive_interval=0.1,settle_timeout=20", stage.script(LOOP), stage.done()]
    survivor, silent = (stage.agent(index, *program, nnodes="1:2") for index in (0, 1))
    running(survivor, 1, 2)
    running(silent, 1, 2)
    silent.send(signal.SIGSTOP)
    running(survivor, 2, 1)
    silent.send(signal.SIGCONT)
    running(survivor, 3, 2)
    running(silent, 3, 2)
    assert "rank=1 generation=1 stops" in silent.lines


def test_a_node_that_comes_after_the_end_hears_how_it_ended(stage: Stage) -> None:
    stage.store("--linger-seconds", "600")
    agents = start(stage, 0, 1)
    stage.finish()
    assert [agent.code() for agent in agents] == [0, 0]
    run_dir = stage.folder / "late"
    (late,) = start(stage, 2, DDP_RUN_DIR=str(run_dir))
    assert late.code() == 0
    assert "ddp-launch: The run was complete before this pod came." in late.lines
    summary = json.loads((run_dir / "summary.json").read_text())
    assert {"result": "succeeded", "world_size": 2}.items() <= summary.items(), "Kubernetes may keep its pod alone"


def test_a_node_that_comes_after_the_run_was_given_up_does_not_try_again(stage: Stage) -> None:
    stage.store("--linger-seconds", "600")
    script = stage.script(
        "import os\nif os.environ['RANK'] == '1': raise ValueError('the cause')\nimport time\ntime.sleep(600)"
    )
    agents = [stage.agent(index, script, restarts=0) for index in (0, 1)]
    assert [agent.code() for agent in agents] == [1, 1]
    for agent in agents:
        assert (
            f"Rank 1 on worker-1 ({HOST}) failed first, it exited with code 1: ValueError: the cause." in agent.output
        )
        # The stack of a rank of another pod is in no log of this one, so it is printed; the own one is there already.
        lines = [line for line in agent.lines if line.startswith("ddp-launch: rank 1 | ")]
        assert bool(lines) == (agent is agents[0])
        assert agent.output.count("ValueError: the cause\n") == 1
    late = stage.agent(2, script, restarts=0)
    assert late.code() == 93
    assert "ValueError: the cause" in late.output


def test_an_agent_of_another_run_is_refused(stage: Stage) -> None:
    stage.store("--run-id", "other")
    (agent,) = start(stage, 0)
    assert agent.code() == 170
    sentence = "The store serves another run than 'run': a newer submission has replaced this one."
    assert f"ddp-launch: {sentence}" in agent.lines


def test_a_store_that_is_not_there_is_named_when_patience_ends(stage: Stage, tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent = stage.agent(
        0, "--rdzv-conf", "join_timeout=1", stage.script(LOOP), stage.done(), DDP_TERMINATION_LOG=str(log),
        DDP_RUN_DIR=str(tmp_path / "run"), DDP_METRICS_PORT="0",
    )  # fmt: skip
    assert agent.code() == 170
    assert f"The store at 127.0.0.1:{stage.port} could not be reached for 1 s" in agent.output
    document = json.loads(log.read_text())
    assert (document["pod_exit_code"], document["goodput"], document["steps"]) == (170, 0.0, 0)
    assert document["spent"]["rendezvous"] >= 0.9
    assert document["largest_badput"] == "rendezvous"


def test_a_port_in_use_is_named(stage: Stage) -> None:
    stage.store()
    second = stage.run([*STORE, "--port", str(stage.port)])
    assert second.code() == 2
    assert f"Port {stage.port} of this host is in use" in second.output
    assert len([line for line in second.lines if line]) == 1


def test_stores_of_two_pods_on_one_machine_share_a_port_number(stage: Stage) -> None:
    for address in ("127.0.0.2", "127.0.0.3"):
        store = stage.run([*STORE, "--port", str(stage.port)], {Env.POD_IP: address})
        store.line(f"ddp-store: listening on {address}:{stage.port}$")


def test_a_store_that_is_told_to_stop_before_its_run_is_over_has_not_succeeded(stage: Stage) -> None:
    store = stage.store()
    store.send(signal.SIGTERM)
    assert store.code() == 128 + signal.SIGTERM


def test_a_c10d_endpoint_on_this_host_needs_no_store_of_its_own(stage: Stage) -> None:
    script = stage.script(LOOP)
    flags = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{stage.port}", "--rdzv-id", "x"]
    agents = [stage.launch(*flags, script, stage.done(), DDP_POD_NAME=f"w-{index}") for index in (0, 1)]
    for agent in agents:
        running(agent, 1, 2)
    stage.finish()
    assert [agent.code() for agent in agents] == [0, 0]


def test_a_static_launch_needs_no_store_at_all(stage: Stage) -> None:
    script = stage.script(LOOP + "say(f\"{os.environ['MASTER_ADDR']} {os.environ['MASTER_PORT']}\")")
    stage.finish()
    port = str(free_port())
    flags = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    agents = [stage.launch(*flags, "--node-rank", str(rank), script, stage.done()) for rank in (0, 1)]
    assert [agent.code() for agent in agents] == [0, 0]
    for agent, ranks in zip(agents, [(0, 1), (2, 3)], strict=True):
        for rank in ranks:
            agent.line(rf"rank={rank} generation=1 world=4")
        assert f"127.0.0.1 {port}" in agent.lines
