"""The rank that the others wait for, by tables of rank states and by the positions of NCCL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_trainer.common.hanging import GroupPosition, RankState, RankStatus, Stage, all_waiting_message, find_culprits
from ddp_trainer.common.time_classes import Section

EACH_STEP = ("all_reduce[[10]]", "all_reduce[[]]")
"""The collectives of a step of plain DDP: gradients, then the loss."""


def waiting(rank: int, **changes: object) -> RankStatus:
    """A rank that has begun its 40th collective, and waits in it."""
    status = RankStatus(
        rank=rank, local_rank=rank % 2, node=f"worker-{rank // 2}", state=RankState.ALIVE, seconds=20.0, limit=30.0
    )
    base = {"sequence": 40, "waits_in": "all_reduce[[]]", "collectives": EACH_STEP * 10, "place": "train.py:30 in step"}
    return replace(status, **{**base, **changes})  # type: ignore[arg-type] # each test names fields of a RankStatus


def behind(rank: int, **changes: object) -> RankStatus:
    late = {"sequence": 39, "waits_in": "", "collectives": (EACH_STEP * 10)[:-1], "place": "train.py:7"}
    return waiting(rank, **{**late, **changes})


WAITING = [waiting(0), waiting(2), waiting(3)]

TABLE = {
    "one that is stopped, and one that is behind for its own reasons": (
        [waiting(0), behind(2), waiting(3), waiting(1, state=RankState.STOPPED)],
        {1: "is stopped by a signal"},
    ),
    "one that holds the GIL": ([*WAITING, behind(1, state=RankState.DEAF)], {1: "holds the GIL"}),
    "one in an endless loop, and a spare that has no part in it": (
        [*WAITING, behind(1), waiting(4, sequence=-1, waits_in="", collectives=(), section=Section.ASIDE, seconds=1.0)],
        {1: "did not enter all_reduce #40; at train.py:7 for 20.0 s (limit 30.0 s)"},
    ),
    "the last of three that wait for one another": (
        [waiting(0), behind(1), behind(2, sequence=38, collectives=(EACH_STEP * 10)[:-2])],
        {2: "did not enter all_reduce #39"},
    ),
    "one of two that has skipped a collective, told from the other by what was due": (
        [waiting(0), waiting(1, collectives=(*(EACH_STEP * 10)[:-1], EACH_STEP[0]))],
        {1: "entered all_reduce[[10]] where all_reduce[[]] was due"},
    ),
    "two that disagree from the start": (
        [waiting(rank, sequence=1, collectives=(name,)) for rank, name in enumerate(("barrier[]", "broadcast[[1]]"))],
        {0: "entered barrier[] where others entered another", 1: "entered broadcast[[1]] where others entered another"},
    ),
    "no rank where two lists differ and the collectives are not counted": (
        [waiting(0, sequence=-1, collectives=("a", "b")), waiting(1, sequence=-1, collectives=("b", "a"))],
        {},
    ),
    "a skip that showed only steps later": (
        [waiting(rank, collectives=(*lists,)) for rank, lists in enumerate(("abcabca", "abcacab", "abcabca"))],
        {1: "entered c where b was due as collective #38"},
    ),
    "one of our trainer that waits in no collective, by its section": (
        [waiting(0, section=Section.BACKWARD, sequence=-1), waiting(1, section=Section.DATA, sequence=-1, waits_in="")],
        {1: "waits in no collective; in section data at train.py:30 in step for 20.0 s (limit 30.0 s)"},
    ),
    "no rank while one moves, however slowly": ([waiting(0), waiting(2), behind(1, seconds=3.0)], {}),
    "no rank while another one moves": ([waiting(0, seconds=1.0), waiting(2), behind(1)], {}),
    "no rank while the late one moves data before its first steps": ([*WAITING, behind(1, is_busy=True)], {}),
    "one that moves data beyond its limit": (
        [*WAITING, behind(1, is_busy=True, limit=15.0)],
        {1: "did not enter all_reduce #40"},
    ),
    "no rank within half of the limit": ([waiting(0), waiting(2), behind(1, limit=50.0)], {}),
    "no rank where one has no limit": ([waiting(0), waiting(2), behind(1, limit=None)], {}),
    "no rank while a debugger holds one": ([*WAITING, behind(1, state=RankState.TRACED)], {}),
    "no rank where all compute": ([waiting(0, waits_in=""), waiting(1, waits_in="")], {}),
    "no rank where all wait in the same collective": (WAITING, {}),
    "no rank without data of torch": ([waiting(0, sequence=-1), waiting(1, sequence=-1)], {}),
}


def test_the_network_is_suspected_where_all_wait_in_one_collective() -> None:
    assert all_waiting_message(WAITING).startswith("all 3 ranks that run wait in all_reduce #40 for 20.0 s: ")


@pytest.mark.parametrize(
    "other",
    [behind(1), waiting(1, waits_in=""), waiting(1, waits_in="barrier[]"), waiting(1, seconds=2.0)],
    ids=["one is behind", "one waits in none", "one waits in another", "one has moved"],
)
def test_the_network_is_not_suspected_otherwise(other: RankStatus) -> None:
    assert not all_waiting_message([*WAITING, other])


@pytest.mark.parametrize(("state", "may_be_killed"), [(RankState.ALIVE, False), (RankState.STOPPED, True)])
def test_a_rank_in_a_checkpoint_is_killed_only_if_a_signal_has_stopped_it(
    state: RankState, may_be_killed: bool
) -> None:
    (culprit,) = find_culprits([*WAITING, behind(1, section=Section.CHECKPOINT, state=state)])
    assert culprit.may_be_killed is may_be_killed


def test_ranks_that_all_wait_for_something_else_are_reported_and_not_killed() -> None:
    named = find_culprits([waiting(rank, section=Section.DATA, waits_in="") for rank in range(3)])
    assert [(culprit.status.rank, culprit.may_be_killed) for culprit in named] == [(0, False), (1, False), (2, False)]


def on_nccl(rank: int, *positions: tuple[str, int, int, int], **changes: object) -> RankStatus:
    """A rank whose host has begun its 40th collective; positions are group, enqueued, started, completed."""
    fields = ("group", "enqueued", "started", "completed")
    places = tuple(GroupPosition(**dict(zip(fields, position, strict=True))) for position in positions)
    return waiting(rank, positions=places, **changes)


ON_GPUS = {
    "one whose kernel does not start": (
        [on_nccl(rank, ("", 40, 38 if rank == 2 else 39, 38)) for rank in range(4)],
        {2: "has not started all_reduce #39 on its GPU, which others wait in; at train.py:30 in step for 20.0 s"},
    ),
    "one that has completed less": (
        [on_nccl(rank, ("", 40, -1, 37 if rank == 1 else 38)) for rank in range(4)],
        {1: "has not completed all_reduce #38 on its GPU, which others have"},
    ),
    "no rank where half have completed less": ([on_nccl(rank, ("", 40, -1, 37 + rank % 2)) for rank in range(4)], {}),
    "one that others wait for in another group": (
        [on_nccl(0, ("", 40, -1, 39), ("tp", 7, -1, 6)), on_nccl(1, ("", 40, -1, 39), ("tp", 6, -1, 6))],
        {1: "did not enter collective #7 of process group tp"},
    ),
    "one behind in its slice, whose neighbour is behind in the default group for it": (
        [
            on_nccl(0, ("", 40, -1, 39), ("tp-0", 9, -1, 9)),
            on_nccl(1, ("", 40, -1, 39), ("tp-0", 9, -1, 9)),
            on_nccl(2, ("", 39, -1, 39), ("tp-1", 9, -1, 8), sequence=39),
            on_nccl(3, ("", 39, -1, 39), ("tp-1", 8, -1, 8), sequence=39),
        ],
        {3: "did not enter all_reduce #40"},
    ),
    "all are as far": ([on_nccl(rank, ("", 40, 40, 39)) for rank in range(4)], {}),
}


@pytest.mark.parametrize(("statuses", "expected"), [*TABLE.values(), *ON_GPUS.values()], ids=[*TABLE, *ON_GPUS])
def test_ranks_without_progress_and_gpus_behind_their_hosts_are_named(
    statuses: list[RankStatus], expected: dict[int, str]
) -> None:
    named = {culprit.status.rank: culprit.why for culprit in find_culprits(statuses)}
    assert named.keys() == expected.keys()
    assert all(named[rank].startswith(why) for rank, why in expected.items())


def meeting(rank: int, seconds: float = 25.0, world: int = 4) -> RankStatus:
    """A rank that has waited in ``init_process_group`` for some time."""
    start = {"sequence": -1, "collectives": (), "limit": None, "notice": 20.0, "waits_in": "init_process_group"}
    return waiting(rank, **start, stage=Stage.INIT, seconds=seconds, world=world)


def apart(rank: int, seconds: float = 90.0, **changes: object) -> RankStatus:
    """A rank that has not begun to make the group."""
    start = {"sequence": -1, "collectives": (), "limit": None, "waits_in": "", "place": "train.py:6 in load"}
    return waiting(rank, **start, stage=Stage.APART, seconds=seconds, **changes)


@pytest.mark.parametrize(
    ("statuses", "named"),
    [
        pytest.param([meeting(0), meeting(2), apart(1)], [1], id="one is not there"),
        pytest.param([meeting(0), apart(1), apart(2)], [1, 2], id="two are not there"),
        pytest.param([meeting(0, 5.0), apart(1)], [], id="the others have just come"),
        pytest.param([meeting(0), apart(1, is_busy=True)], [], id="it computes or reads"),
        pytest.param([meeting(0), apart(1), apart(2, is_busy=True)], [], id="one of two does"),
        pytest.param([apart(0), apart(1)], [], id="no rank is there"),
        pytest.param([waiting(0), waiting(2), apart(1)], [], id="the others have a group without it"),
        pytest.param([meeting(0), waiting(1, state=RankState.STOPPED)], [1], id="it is stopped by a signal"),
    ],
)
def test_a_rank_that_does_not_come_to_the_first_group_is_named(statuses: list[RankStatus], named: list[int]) -> None:
    found = find_culprits(statuses)
    assert [culprit.status.rank for culprit in found] == named
    if named == [1] and statuses[-1].stage:
        message = "rank 1 on worker-0 has not reached init_process_group; at train.py:6 in load for 25.0 s"
        assert found[0].message == message


def test_ranks_that_all_wait_in_init_process_group_are_reported_with_the_world_size_of_the_script() -> None:
    sentence = all_waiting_message([meeting(rank, world=8) for rank in range(4)])
    assert "all 4 ranks that run wait in init_process_group for 25.0 s: the script asks for a world of 8" in sentence
    assert "MASTER_ADDR" in all_waiting_message([meeting(rank) for rank in range(4)])
    assert not all_waiting_message([*[meeting(rank) for rank in range(3)], meeting(3, 2.0)])
