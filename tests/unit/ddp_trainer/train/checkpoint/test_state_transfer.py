"""A state goes from one rank to others in place, and a lost rank leaves the states of the others as they were."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.checkpoint import checkpoint_broadcast, state_transfer
from ddp_trainer.train.checkpoint.checkpoint_broadcast import from_rank
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, read, unpack
from ddp_trainer.train.checkpoint.state_transfer import broadcast_state, exchange_states
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import PeerLost
from tests.support.forked_ranks import LOST, run_ranks
from tests.support.train_builders import a_directory, a_manifest, write

MIB = 1 << 20


def a_state() -> dict[str, Any]:
    """Every kind of value that a checkpoint holds."""
    tied = torch.arange(40.0).view(8, 5)
    return {
        "model": {
            "in": tied,
            "out": tied.detach(),
            "image": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "seen": torch.tensor([True, False])}},
            "groups": [{"lr": 0.1}],
        },
        "gaps": torch.arange(12).view(3, 4)[:, 1:3],
        "half": (torch.ones(7, dtype=torch.bfloat16), None, "word"),
        "empty": torch.empty(0, 3),
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_PIECE_BYTES", 48), ("_BUCKET_BYTES", 24), ("_SMALL_BYTES", 32)):
        monkeypatch.setattr(state_transfer, name, size)


@pytest.mark.usefixtures("small_pieces")
def test_each_rank_that_wants_the_state_gets_all_of_it_and_tied_tensors_stay_tied() -> None:
    torch.manual_seed(0)
    state = a_state()

    def receive(group: Group) -> object:
        given, imported = state if group.rank == 1 else None, len(sys.modules)
        got = broadcast_state(given, 1, group, wanted=group.rank != 2)
        assert len(sys.modules) < imported + 20, "a rank that recovers has no time to import"
        if group.rank == 2:
            return got
        assert got["model"]["in"].data_ptr() == got["model"]["out"].data_ptr()
        assert got["model"]["image"].is_contiguous(memory_format=torch.channels_last)
        return equal(got, state)

    assert run_ranks(3, receive) == [True, True, None]


@pytest.mark.usefixtures("small_pieces")
def test_within_pairs_each_target_gets_the_state_of_its_source() -> None:
    def receive(group: Group) -> object:
        state = {**a_state(), "whose": torch.full((40 * (group.rank + 1),), group.rank)}
        got = exchange_states(state, [(0, 3), (2, 1)], group)
        return None if got is None else got["whose"].tolist()

    assert run_ranks(5, receive) == [None, [2] * 120, None, [0] * 40, None]


def test_a_state_is_received_into_given_tensors_of_the_same_form_without_more_memory() -> None:
    def high_water() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) << 10

    def receive(group: Group) -> object:
        own = {"a": torch.full((20 * MIB,), float(group.rank)), "b": torch.zeros(5), "c": torch.zeros(3)}
        before = high_water()
        state = {"model": {**own, "c": torch.ones(4)}}
        got = broadcast_state(state if group.rank == 0 else None, 0, group, targets={"model": own})
        assert high_water() - before < 64 * MIB
        is_same = [got["model"][name].data_ptr() == own[name].data_ptr() for name in own]
        return is_same[:2], float(own["a"].sum()), got["model"]["c"].tolist(), own["c"].tolist()

    assert run_ranks(2, receive) == [([True, True], 0.0, [1.0] * 4, [0.0] * 3)] * 2


@pytest.mark.usefixtures("small_pieces")
def test_a_source_that_is_lost_leaves_the_states_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    send, sent = dist.broadcast, []

    def die_at_third(*args: Any, **kwargs: Any) -> Any:
        sent.append(args)
        if len(sent) == 3 and dist.get_rank() == 0:
            os._exit(9)
        return send(*args, **kwargs)

    def receive(group: Group) -> object:
        monkeypatch.setattr(dist, "broadcast", die_at_third)
        own = {"weights": torch.full((100,), float(group.rank))}
        try:
            broadcast_state(own, 0, group)
        except PeerLost:
            return own["weights"].unique().tolist()
        return "nothing was raised"

    assert run_ranks(3, receive) == [LOST, [1.0], [2.0]]


def test_a_rank_reads_the_directory_that_it_sees_and_is_sent_what_it_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(a_directory(tmp_path), 7)
    directory = tmp_path / "step-00000007"
    full_state = unpack(read(directory))

    def resume(group: Group) -> object:
        if group.rank == 2:
            monkeypatch.setattr(checkpoint_broadcast, "manifest_if_complete", lambda _: None)
        if group.rank == 3:  # another machine: it has to verify what it reads
            monkeypatch.setattr(checkpoint_broadcast, "_BOOT_ID", tmp_path / "none")
            (directory / "state.pt").write_bytes((directory / "state.pt").read_bytes()[:-1] + b"x")
        group.gather(0)
        found = from_rank(1, Checkpoint(whole_manifest, directory) if group.rank == 1 else None, group)
        return found.directory is not None, equal(unpack(found)["weights"], full_state["weights"])

    whole_manifest = read(directory).manifest
    assert run_ranks(4, resume) == [(True, True), (True, True), (False, True), (False, True)]


def test_a_rank_that_wants_nothing_takes_part() -> None:
    def receive(group: Group) -> object:
        checkpoint = Checkpoint(a_manifest(3), state={"x": torch.arange(3)}) if group.rank == 0 else None
        receive_options = checkpoint_broadcast.NEW_MEMORY._replace(is_wanted=group.rank != 1)
        state = from_rank(0, checkpoint, group, receive=receive_options).state
        return None if state is None else state["x"].tolist()

    assert run_ranks(3, receive) == [[0, 1, 2], None, [0, 1, 2]]


def test_a_state_that_one_rank_lacks_is_sent_to_it_alone_and_into_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"model": {"weight": torch.arange(300_000.0)}}
    sent: list[int] = []
    send = dist.broadcast

    def remember(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.nbytes)
        return send(tensor, *args, **kwargs)

    monkeypatch.setattr(dist, "broadcast", remember)

    def receive(group: Group) -> object:
        own = {"model": {"weight": torch.zeros(300_000)}}
        receive_options = checkpoint_broadcast.Receive(is_wanted=group.rank == 2, targets=lambda: own)
        checkpoint = Checkpoint(a_manifest(3), state=state) if group.rank == 0 else None
        found = from_rank(0, checkpoint, group, receive=receive_options).state
        is_whole = found is not None and torch.equal(found["model"]["weight"], state["model"]["weight"])
        return is_whole, float(own["model"]["weight"].sum()) > 0, max(sent, default=0) < 10_000

    assert run_ranks(3, receive) == [(True, False, True), (False, False, True), (True, True, True)]


def test_a_rank_that_needs_no_state_passes_on_the_right_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four ranks, gloo sends from rank 0 to 3 by way of 1, while later tensors arrive there already."""
    monkeypatch.setattr(state_transfer, "_SMALL_BYTES", 1)
    state = {str(number): torch.full((250_000,), float(number)) for number in range(40)}

    def receive(group: Group) -> object:
        received = broadcast_state(state if group.rank == 0 else None, 0, group, wanted=group.rank != 1)
        return None if received is None else [name for name in state if not received[name].equal(state[name])]

    assert run_ranks(4, receive) == [[], None, [], []]
