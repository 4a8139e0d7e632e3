"""Messages between agents and store, and the exit codes that both know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Annotated, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.common.strict_json import Bounds
from ddp_trainer.launch.protocol import exit_codes
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.protocol.message_fields import MOST_NAMED
from ddp_trainer.launch.protocol.messages import (
    VERSION,
    Failed,
    FromAgent,
    FromStore,
    HangingRanks,
    Hello,
    Identity,
    Join,
    Leave,
    OtherPolicy,
    Over,
    Part,
    Ping,
    Policy,
    PreflightResult,
    ProtocolError,
    RankStates,
    Rejected,
    RunPreflight,
    Show,
    Start,
    Stop,
    Succeeded,
    SuspectHang,
    Verdict,
    Waiting,
    WorkerState,
    decode,
    encode,
)
from tests.support.launch_simulation import a_failure, a_policy, place_of

NODE = Node(token="t", name="w-0", index=None, local_world_size=2)
GENERATION = Generation(
    number=3, fence=3, nodes=(NODE, NODE), master_address="h", master_port=1, restarts={"failure": 2}
)
PLACE = place_of(GENERATION, "t")
STATUS = RankStatus(
    rank=1, local_rank=1, node="w-0", state=RankState.ALIVE, seconds=2.5, limit=60.0, section="data", collectives=("a",)
)
HELLO = Hello(version=VERSION, run_id="r", node=NODE, policy=a_policy(), standing=WorkerState.IDLE)
MESSAGES = [
    replace(HELLO, standing=WorkerState.RUNNING, last=PLACE),
    HELLO,
    replace(HELLO, identity=Identity(program="train.py", path="/a/é", digest="1-0"), looks=True),
    Join(port=1),
    Failed(failure=a_failure(1)),
    Failed(failure=a_failure(1), agreed=True),
    Succeeded(generation=1),
    Leave(),
    Part(),
    SuspectHang(generation=3),
    RankStates(generation=3, ranks=(STATUS, replace(STATUS, limit=None, state=RankState.DEAF))),
    Ping(),
    PreflightResult(number=2, fit=False),
    RunPreflight(number=2, names=("w-0", "w-1"), place=PLACE),
    Show(generation=3),
    HangingRanks(generation=3, ranks=(1, 2), to_kill=(), sentences=("é", "")),
    Start(assignment=PLACE),
    Stop(graceful=True),
    Waiting(nodes=1, spare=False),
    Over(verdict=Verdict.FAILED, exit_code=1, failure=a_failure(2), restarts={"hang": 1}),
    Rejected(why="é\n", exit_code=170),
    OtherPolicy(policy=Policy(min_nodes=1, max_nodes=2, max_restarts=3)),
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
        b'{"is":"join"}',
        b'{"is":"join","port":"1"}',
        b'{"is":"join","port":true}',
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


def unbounded(kind: object, where: str, *, is_bounded: bool = False) -> Iterator[str]:
    """Places of a type that hold an integer, a number, a string or a list without a bound."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        is_bounded, parts = any(isinstance(note, Bounds) for note in parts[1:]), parts[:1]
    elif kind in {int, float, str} or origin in {tuple, dict}:
        if not is_bounded:
            yield where
        is_bounded = False
    if is_dataclass(kind):
        for name, part in get_type_hints(kind, include_extras=True).items():
            yield from unbounded(part, f"{where}.{name}")
    for part in parts:
        yield from unbounded(part, where, is_bounded=is_bounded)


def test_every_number_string_and_list_of_a_message_has_a_bound() -> None:
    kinds = get_args(FromAgent) + get_args(FromStore)
    assert [place for kind in kinds for place in unbounded(kind, kind.__name__)] == []


def changed(message: object, **values: object) -> bytes:
    """The line of a message with other values, some of them of a part (``node__name``)."""
    data = json.loads(encode(message))
    for path, value in values.items():
        *parts, name = path.split("__")
        place = data
        for part in parts:
            place = place[part]
        place[name] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "line",
    [
        changed(MESSAGES[0], last__fence=10**4299),
        changed(MESSAGES[0], last__node_count=1 << 17),
        changed(MESSAGES[1], node__name="w\x00"),
        changed(MESSAGES[1], node__name="w\ud800"),
        changed(MESSAGES[1], node__name="w" * 254),
        changed(MESSAGES[1], node__address="10.0.0.1\x00"),
        changed(MESSAGES[1], node__local_world_size=0),
        changed(MESSAGES[1], policy__settle_seconds=-1.0),
        changed(Join(port=1), port=65536),
        changed(Failed(failure=a_failure(1)), failure__exit_code=256),
        changed(Failed(failure=a_failure(1)), failure__stack="x" * 100_000),
        changed(
            RankStates(generation=3, ranks=()),
            ranks=[json.loads(encode(RankStates(generation=3, ranks=(STATUS,))))["ranks"][0]] * 2000,
        ),
    ],
    ids=lambda line: line[-60:].decode(errors="replace"),
)
def test_a_value_outside_of_its_bounds_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)


def test_a_start_of_a_large_group_is_as_short_as_that_of_a_small_one() -> None:
    def longest(count: int) -> int:
        nodes = tuple(
            Node(token=f"{index:032x}", name=f"{'w' * 50}-{index}", local_world_size=8, address="2001:db8::ffff:ffff")
            for index in range(count)
        )
        group = Generation(number=9, fence=9, nodes=nodes, master_address="h", master_port=1)
        return max(len(encode(Start(assignment=place))) for _, place in group.assignments())

    assert longest(4096) < longest(16) + 100 < 4096


def test_what_hangs_is_told_to_a_node_in_a_message_that_does_not_grow_with_the_run() -> None:
    ranks = tuple(range(1000))
    hung = HangingRanks(
        generation=3, ranks=ranks, to_kill=ranks, sentences=tuple(f"rank {rank} is silent" for rank in ranks)
    )
    verdict_of_node = hung.for_node(first_rank=500, local_world_size=2)
    assert verdict_of_node.ranks == (*range(MOST_NAMED), 500, 501)
    assert verdict_of_node.to_kill == verdict_of_node.ranks
    assert verdict_of_node.sentences[-1] == "rank 501 is silent"
    assert verdict_of_node.more == 1000 - len(verdict_of_node.ranks)


def test_every_code_below_128_is_final_and_every_other_is_not() -> None:
    assert exit_codes.of_given_up_run(127) == 127
    assert exit_codes.of_given_up_run(128) == 93
