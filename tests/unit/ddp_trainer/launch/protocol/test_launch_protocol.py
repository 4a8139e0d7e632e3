"""Messages between agents and store, and exit codes."""

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
from ddp_trainer.launch.protocol import exit_codes, messages
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.protocol.message_fields import MOST_NAMED
from tests.support.launch_simulation import a_failure, a_policy, place_of

NODE = Node(token="t", name="w-0", index=None, local_world_size=2)
GROUP = Generation(number=3, fence=3, nodes=(NODE, NODE), master_address="h", master_port=1, restarts={"failure": 2})
PLACE = place_of(GROUP, "t")
STATUS = RankStatus(
    rank=1, local_rank=1, node="w-0", state=RankState.ALIVE, seconds=2.5, limit=60.0, section="data", collectives=("a",)
)
IDLE, VERSION = messages.WorkerState.IDLE, messages.VERSION
HELLO = messages.Hello(version=VERSION, run_id="r", node=NODE, policy=a_policy(), standing=IDLE)
RANKS = messages.RankStates(generation=3, ranks=(STATUS,))
MESSAGES = [
    replace(HELLO, standing=messages.WorkerState.RUNNING, last=PLACE),
    HELLO,
    replace(
        HELLO, identity=messages.ProgramIdentity(program="train.py", path="/a/é", digest="1-0"), joins_preflight=True
    ),
    messages.Join(port=1),
    messages.Failed(failure=a_failure(1)),
    messages.Failed(failure=a_failure(1), agreed=True),
    messages.Succeeded(generation=1, summary='{"steps":3}'),
    messages.Leave(),
    messages.Part(),
    messages.SuspectHang(generation=3),
    replace(RANKS, ranks=(STATUS, replace(STATUS, limit=None, state=RankState.DEAF))),
    messages.Ping(),
    messages.PreflightResult(number=2, fit=False),
    messages.RunPreflight(number=2, names=("w-0", "w-1"), place=PLACE),
    messages.Show(generation=3),
    messages.HangingRanks(generation=3, ranks=(1, 2), to_kill=(), sentences=("é", "")),
    messages.Start(assignment=PLACE),
    messages.Stop(graceful=True),
    messages.Waiting(nodes=1, spare=False),
    messages.Over(verdict=messages.Verdict.FAILED, exit_code=1, failure=a_failure(2), restarts={"hang": 1}),
    messages.Rejected(why="é\n", exit_code=170),
    messages.OtherPolicy(policy=messages.Policy(min_nodes=1, max_nodes=2, max_restarts=3)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire_on_one_line(message: str) -> None:
    line = messages.encode(message)
    assert line.count(b"\n") == 1
    assert messages.decode(line) == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from([json.loads(messages.encode(message)) for message in MESSAGES]), st.data())
def test_a_changed_field_is_read_as_declared_or_refused(message: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(message)))
    try:
        read = messages.decode(json.dumps({**message, name: data.draw(JSON)}).encode())
    except messages.ProtocolError:
        return
    assert messages.decode(messages.encode(read)) == read


def unbounded(kind: object, where: str, *, is_bounded: bool = False) -> Iterator[str]:
    """Yield the fields of a type that hold a number, a string or a list without a bound."""
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
    kinds = get_args(messages.FromAgent) + get_args(messages.FromStore)
    assert [place for kind in kinds for place in unbounded(kind, kind.__name__)] == []


def changed(message: object, **values: object) -> bytes:
    """Return the line of a message with other values; ``node__name`` is the name of its node."""
    data = json.loads(messages.encode(message))
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
        b"",
        b"GET / HTTP/1.1",
        b"[]",
        b'{"is":"exec"}',
        b'{"is":"join"}',
        b'{"is":"join","port":true}',
        b'{"is":"join","port":1,"more":1}',
        b'{"is":"stop","graceful":1}',
        b'{"is":"failed","failure":{}}',
        b'{"is":"over","verdict":"maybe","exit_code":1}',
        b'{"is":"waiting","nodes":NaN,"spare":false}',
        b"\xff\xfe",
        b"[" * 100_000,
        changed(MESSAGES[0], last__fence=10**4299),
        changed(MESSAGES[0], last__node_count=1 << 17),
        changed(MESSAGES[1], node__name="w\x00"),
        changed(MESSAGES[1], node__name="w\ud800"),
        changed(MESSAGES[1], node__name="w" * 254),
        changed(MESSAGES[1], node__address="10.0.0.1\x00"),
        changed(MESSAGES[1], node__local_world_size=0),
        changed(MESSAGES[1], policy__settle_seconds=-1.0),
        changed(messages.Join(port=1), port=65536),
        changed(messages.Failed(failure=a_failure(1)), failure__exit_code=256),
        changed(messages.Failed(failure=a_failure(1)), failure__stack="x" * 100_000),
        changed(RANKS, ranks=json.loads(messages.encode(RANKS))["ranks"] * 2000),
    ],
    ids=lambda line: line[-60:].decode(errors="replace"),
)
def test_anything_else_and_a_value_outside_of_its_bounds_are_refused(line: bytes) -> None:
    with pytest.raises(messages.ProtocolError):
        messages.decode(line)


def test_a_start_of_a_large_group_is_as_short_as_that_of_a_small_one() -> None:
    def longest(count: int) -> int:
        node = Node(token="", name="", local_world_size=8, address="2001:db8::ffff:ffff")
        nodes = tuple(replace(node, token=f"{index:032x}", name=f"{'w' * 50}-{index}") for index in range(count))
        group = Generation(number=9, fence=9, nodes=nodes, master_address="h", master_port=1)
        return max(len(messages.encode(messages.Start(assignment=place))) for _, place in group.assignments())

    assert longest(4096) < longest(16) + 100 < 4096


def test_the_message_about_a_hang_to_a_node_does_not_grow_with_the_run() -> None:
    ranks = tuple(range(1000))
    sentences = tuple(f"rank {rank} is silent" for rank in ranks)
    hung = messages.HangingRanks(generation=3, ranks=ranks, to_kill=ranks, sentences=sentences)
    verdict_of_node = hung.for_node(first_rank=500, local_world_size=2)
    assert verdict_of_node.ranks == verdict_of_node.to_kill == (*range(MOST_NAMED), 500, 501)
    assert verdict_of_node.sentences[-1] == "rank 501 is silent"
    assert verdict_of_node.more == 1000 - len(verdict_of_node.ranks)


def test_every_code_below_128_is_final_and_every_other_is_not() -> None:
    assert [exit_codes.of_given_up_run(code) for code in (127, 128)] == [127, 93]
