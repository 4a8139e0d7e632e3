from __future__ import annotations

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from launch_simulation import a_failure, a_policy

from ddp_trainer.hanging.look import Look, RankState
from ddp_trainer.launch.protocol import (
    VERSION,
    Alarm,
    Failed,
    Generation,
    Hello,
    Hung,
    Identity,
    Join,
    Leave,
    Looks,
    Meet,
    Met,
    Node,
    Over,
    Part,
    Ping,
    ProtocolError,
    Refused,
    Show,
    Standing,
    Start,
    Stop,
    Succeeded,
    Verdict,
    Waiting,
    decode,
    encode,
)

NODE = Node(token="t", name="w-0", index=None, local_world_size=2)
GENERATION = Generation(
    number=3, fence=3, nodes=(NODE, NODE), master_address="h", master_port=1, restarts={"failure": 2}
)
PLACE = GENERATION.assignment_of("t")
LOOK = Look(
    rank=1, local_rank=1, node="w-0", state=RankState.ALIVE, seconds=2.5, limit=60.0, section="data", collectives=("a",)
)
MESSAGES = [
    Hello(version=VERSION, run_id="r", node=NODE, policy=a_policy(), standing=Standing.RUNNING, last=PLACE),
    Hello(version=VERSION, run_id="r", node=NODE, policy=a_policy(), standing=Standing.IDLE),
    Hello(
        version=VERSION,
        run_id="r",
        node=NODE,
        policy=a_policy(),
        standing=Standing.IDLE,
        identity=Identity(program="train.py", path="/a/é", digest="1-0"),
        looks=True,
    ),
    Join(port=1),
    Failed(failure=a_failure(1)),
    Failed(failure=a_failure(1), agreed=True),
    Succeeded(generation=1),
    Leave(),
    Part(),
    Leave(giving_up=a_failure(1)),
    Alarm(generation=3),
    Looks(generation=3, ranks=(LOOK, replace(LOOK, limit=None, state=RankState.DEAF))),
    Ping(),
    Met(number=2, fit=False),
    Meet(number=2, names=("w-0", "w-1"), place=PLACE),
    Show(generation=3),
    Hung(generation=3, ranks=(1, 2), to_kill=(), sentences=("é", "")),
    Start(assignment=PLACE),
    Stop(graceful=True),
    Waiting(nodes=1, spare=False),
    Over(verdict=Verdict.FAILED, exit_code=1, failure=a_failure(2), restarts={"hang": 1}),
    Refused(why="é\n", exit_code=170),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire_on_one_line(message: str) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1",
        b"[]",
        b"{}",
        b'{"is":"exec"}',
        b'{"is":["join"]}',
        b'{"is":"join"}',
        b'{"is":"join","port":"1"}',
        b'{"is":"join","port":true}',
        b'{"is":"join","port":1.5}',
        b'{"is":"join","port":1,"more":1}',
        b'{"is":"stop","graceful":1}',
        b'{"is":"failed","failure":{}}',
        b'{"is":"over","verdict":"maybe","exit_code":1}',
        b'{"is":"waiting","nodes":NaN,"spare":false}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from([json.loads(encode(message)) for message in MESSAGES]), st.data())
def test_a_changed_field_is_read_as_declared_or_refused(message: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(message)))
    try:
        read = decode(json.dumps({**message, name: data.draw(JSON)}).encode())
    except ProtocolError:
        return
    assert decode(encode(read)) == read
