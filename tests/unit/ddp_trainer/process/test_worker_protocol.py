"""The lines between an agent and a worker that outlives its group."""

from __future__ import annotations

import pytest

from ddp_trainer.process.worker_protocol import (
    LINE_BYTES,
    Begin,
    Ended,
    LayoutReport,
    LeaveGroup,
    Left,
    Lines,
    Message,
    Reusable,
    encode,
)


@pytest.mark.parametrize(
    "message",
    [
        Reusable(able=False),
        LayoutReport(parallel="replicate=1:2,shard=2"),
        Left(generation=3, exit_code=170, why="a peer\nwent"),
        Left(generation=3, exit_code=143, why="", stays=False, publishes=True),
        Ended(exit_code=3),
        LeaveGroup(generation=3, graceful=True),
        Begin(environment={"RANK": "1"}),
    ],
)
def test_a_message_arrives_whole_however_it_is_cut(message: Message) -> None:
    lines, data = Lines(), encode(message)
    assert [decoded for byte in data for decoded in lines.take(bytes([byte]))] == [message]


@pytest.mark.parametrize(
    "data",
    [
        *(b"x\n", b"[]\n", b'{"is":"left"}\n', b'{"is":"quit"}\n', b'{"is":[]}\n', b"x" * (LINE_BYTES + 1)),
        b'{"is":"reusable","able":"yes"}\n',
        b'{"is":"left","generation":"1","exit_code":0,"why":""}\n',
        b'{"is":"left","generation":1,"exit_code":0,"why":["x"]}\n',
        b'{"is":"reusable","able":true,"more":1}\n',
    ],
)
def test_what_none_of_ours_says_is_no_message(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|line"):
        Lines().take(data)
