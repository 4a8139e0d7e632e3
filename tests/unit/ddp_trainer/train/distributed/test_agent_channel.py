"""A worker talks to its agent, and is stopped by signals."""

from __future__ import annotations

import math
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.process.worker_protocol import Begin, LeaveGroup, Left, Lines, Message, Reusable, encode
from ddp_trainer.train.api import with_defaults
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest
from ddp_trainer.train.distributed.stream_abort import StreamAbort, Streams
from ddp_trainer.train.recovery.group_transition import GroupTransition
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost
from tests.support.ports import free_port
from tests.support.programs import captured

GENERATION = 3


class Agent:
    """The agent's end of the channel, and the worker's objects."""

    def __init__(self) -> None:
        self.connection, worker_end = socket.socketpair()
        self.connection.settimeout(60)
        self.control = Control(worker_end, {}, generation=GENERATION)
        self.left: list[int] = []
        self.stop = StopRequest(grace_seconds=60, leave=lambda code, _: self.left.append(code))
        self.passage = GroupTransition(Config(timeout_seconds=5), self.control, self.stop, can_stay=True)
        self._lines = Lines()

    def say(self, message: Message) -> None:
        self.connection.sendall(encode(message))

    def handle_message(self) -> list[Message]:
        return self._lines.take(self.connection.recv(1 << 16))


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.stop.finished()
    with agent.connection:
        agent.connection.shutdown(socket.SHUT_WR)
        while agent.connection.recv(1 << 16):
            pass  # until the other end is closed, too


def nobody_there() -> Environment:
    return Environment(rank=1, world_size=2, master_address="127.0.0.1", master_port=free_port())


def once_it_meets(control: Control, then: threading.Thread) -> None:
    """Start the thread when the worker begins to join the group."""
    entering = control.mark_joining

    def entered(cut: object) -> None:
        entering(cut)  # type: ignore[arg-type]
        then.start()

    control.mark_joining = entered  # type: ignore[method-assign,assignment]


def test_one_that_outlived_a_group_and_is_told_to_stop_does_not_wait_for_the_next_to_be_met(agent: Agent) -> None:
    agent.stop.begin_training()  # in the group before
    once_it_meets(agent.control, threading.Thread(target=agent.stop.on_signal, args=(15,)))
    with pytest.raises(GroupEnded):
        agent.passage.join(nobody_there())
    assert agent.passage.next(GroupEnded("over")) is None
    assert agent.left == []


def test_one_that_is_told_to_stop_between_two_groups_meets_none(agent: Agent) -> None:
    agent.stop.begin_training()
    agent.stop.on_signal(15)
    with pytest.raises(GroupEnded):
        agent.passage.join(nobody_there())


def test_a_meeting_that_the_launcher_calls_off_is_nobodys_failure(agent: Agent) -> None:
    regroup = LeaveGroup(generation=GENERATION, graceful=True)
    once_it_meets(agent.control, threading.Thread(target=agent.say, args=(regroup,)))
    with pytest.raises(GroupEnded) as ended:
        agent.passage.join(nobody_there())
    agent.handle_message()
    agent.control.report_group_exit(ended.value)
    (left,) = agent.handle_message()
    assert isinstance(left, Left)
    assert (left.generation, left.exit_code) == (GENERATION, Exit.TERMINATED)


def test_a_meeting_that_fails_by_itself_is_a_lost_peer(agent: Agent) -> None:
    with pytest.raises(PeerLost) as lost:
        GroupTransition(Config(timeout_seconds=0.1), agent.control, agent.stop, can_stay=True).join(nobody_there())
    assert not isinstance(lost.value, GroupEnded)


def test_one_without_a_group_leaves_the_next_one_before_it_knows_its_place(agent: Agent) -> None:
    agent.control.report_group_exit(GroupEnded("over"))
    agent.say(LeaveGroup(generation=GENERATION, graceful=True))  # it crossed the report, and is answered already
    agent.say(LeaveGroup(generation=GENERATION + 1, graceful=True))
    answers: list[Left] = []
    while [answer.generation for answer in answers][-1:] != [GENERATION + 1]:
        answers += [answer for answer in agent.handle_message() if isinstance(answer, Left)]
    assert [(answer.generation, answer.stays) for answer in answers] == [(GENERATION, True), (GENERATION + 1, True)]


def test_a_place_in_the_next_group_replaces_that_in_the_one_before(agent: Agent) -> None:
    agent.say(Begin(environment={"RANK": "4", "WORLD_SIZE": "9", Env.GENERATION: "7"}))
    place = agent.control.next_place(lambda: False)
    assert (place.rank, place.world_size, place.generation) == (4, 9, 7)


@pytest.mark.parametrize(
    ("backend", "survives", "keeps_process"),
    [("gloo", False, True), ("none", False, True), ("nccl", False, False), ("nccl", True, True)],
)
def test_a_process_outlives_an_nccl_group_only_where_it_is_asked_to(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, backend: str, survives: bool, keeps_process: bool
) -> None:
    cpu = torch.device("cpu")
    group = Group(0, 2, backend, cpu, abort=StreamAbort(Streams(), cpu, pytest.fail) if survives else None)
    monkeypatch.setattr(Group, "join", lambda *_, **__: group)
    agent.passage.join(nobody_there())
    assert agent.passage.is_open is keeps_process
    agent.passage.close()
    # The agent ends a worker that is not reusable by SIGTERM, without a request to leave its group.
    assert agent.handle_message() == [Reusable(able=True), Reusable(able=False)]


def test_the_environment_asks_to_outlive_an_nccl_group_as_the_flag_does() -> None:
    assert not with_defaults(Config(), Environment.from_env({})).survive_on_nccl
    assert with_defaults(Config(), Environment.from_env({Env.SURVIVE_ON_NCCL: "1"})).survive_on_nccl
    assert with_defaults(Config(survive_on_nccl=True), Environment.from_env({})).survive_on_nccl


TOLD_AT_EVERY_LINE = """
import os, signal, sys, threading
from ddp_trainer.train.distributed.stop_signals import StopRequest

def told_at(line):
    def trace(frame, event, _):
        nonlocal line
        if frame.f_code is not StopRequest.handle_signals.__wrapped__.__code__:
            return None
        if event == "line":
            line -= 1
            if not line:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace
    sys.settrace(trace)
    with StopRequest(grace_seconds=60, leave=lambda code, _: os._exit(code)).handle_signals():
        sys.settrace(None)
        if line > 0:
            os._exit(0)  # it has fewer lines
        threading.Event().wait(20)
    os._exit(1)  # the signal was lost

codes = []
while 0 not in codes:
    child = os.fork()
    if not child:
        told_at(len(codes) + 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*codes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_no_signal_is_lost_while_a_process_begins_to_listen() -> None:
    done = captured([sys.executable, "-c", TOLD_AT_EVERY_LINE], check=True)
    *codes, last = map(int, done.stdout.split())
    assert last == 0
    assert len(codes) > 5
    assert set(codes) <= {-15, Exit.TERMINATED}
    assert Exit.TERMINATED in codes


def test_a_request_before_training_is_obeyed_at_once_and_later_ones_wait() -> None:
    left: list[int] = []
    request = StopRequest(grace_seconds=60, leave=lambda code, _: left.append(code))
    request.begin_training()
    request.on_signal(15)
    assert request.exit_code == 143
    assert left == []
    request.on_signal(2)
    assert left == [130]
    request.finished()
    StopRequest(grace_seconds=60, leave=lambda code, _: left.append(code)).on_signal(15)
    assert left == [130, 143]


def test_some_of_the_grace_period_is_left_to_the_launcher() -> None:
    assert math.isclose(StopRequest(grace_seconds=30, leave=lambda *_: None).patience_seconds, 29)
    assert math.isclose(StopRequest(grace_seconds=1, leave=lambda *_: None).patience_seconds, 0.5)
