"""A group resumes: every rank gets the state, and digests are computed while it trains."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train import Config, run
from ddp_trainer.train.api import make_progress
from ddp_trainer.train.checkpoint import checkpoint_broadcast, checkpoint_files, state_transfer
from ddp_trainer.train.checkpoint.checkpoint_broadcast import broadcast_latest_checkpoint, from_rank
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, read, unpack
from ddp_trainer.train.checkpoint.checkpoint_verify import BackgroundVerification
from ddp_trainer.train.checkpoint.manifest import PAYLOAD
from ddp_trainer.train.checkpoint.state_transfer import broadcast_state, exchange_states
from ddp_trainer.train.config.option_values import ScheduleName
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest, exit_immediately
from ddp_trainer.train.loop.run_context import ProcessContext
from ddp_trainer.train.trainer import Trainer
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost
from tests.support.forked_ranks import LOST, run_ranks
from tests.support.train_builders import HERE, Lines, a_directory, a_manifest, latest, lines_config, write


def damage(directory: Path) -> None:
    """Change one bit of the weights, so that the file can still be loaded."""
    state = unpack(read(directory))
    weights = state.get("weights", state.get("model", {}).get("weight")).numpy().tobytes()
    content = bytearray((directory / PAYLOAD).read_bytes())
    content[content.index(weights)] ^= 1
    (directory / PAYLOAD).write_bytes(content)


def load(group: Group, own: Checkpoint | None) -> tuple[Checkpoint, BackgroundVerification, list[str]]:
    found = broadcast_latest_checkpoint(own, group, lambda _: None)
    alarms: list[str] = []
    verification = BackgroundVerification(found, group, alarms.append)
    verification.start()
    return found, verification, alarms


def test_one_rank_per_machine_computes_the_digest_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = a_directory(tmp_path)
    write(directory, 7)
    verify, verified = checkpoint_files.verify_files, list[Path]()

    def resume(group: Group) -> object:
        may_verify = threading.Event()

        def when_allowed(place: Path, *args: object) -> None:
            may_verify.wait()
            verified.append(place)
            verify(place, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(checkpoint_files, "verify_files", when_allowed)
        if group.rank > 1:
            monkeypatch.setattr(checkpoint_broadcast, "_BOOT_ID", tmp_path / "none")  # another machine
        if group.rank == 4:
            monkeypatch.setattr(checkpoint_broadcast, "manifest_if_complete", lambda _: None)  # sees no directory
        own = directory.latest_checkpoint(pytest.fail, verified=False) if group.rank == 0 else None
        checkpoint, verification, _ = load(group, own)
        weights = unpack(checkpoint)["weights"].tolist()
        is_early = verification.agree(wait=False)
        may_verify.set()
        return weights == list(range(10)), is_early, verification.agree(wait=True), len(verified)

    ranks = run_ranks(5, resume)
    assert [rank[:3] for rank in ranks] == [(True, False, True)] * 5
    assert [rank[3] for rank in ranks] == [1, 0, 1, 0, 0]


def test_damage_ends_the_group_on_every_rank_and_the_next_one_takes_the_checkpoint_before(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    for step in (1, 2):
        write(directory, step)
    damage(tmp_path / "step-00000002")

    def resume(group: Group) -> object:
        own = directory.latest_checkpoint(pytest.fail, verified=False) if group.rank == 1 else None
        checkpoint, verification, alarms = load(group, own)
        with pytest.raises(GroupEnded, match="the checkpoint of step 2, which is damaged"):
            verification.agree(wait=True)
        return checkpoint.manifest.step, alarms

    first, second = run_ranks(2, resume)
    reason = "state.pt does not have the digest that manifest.json names"
    assert first == (2, [f"{tmp_path}/step-00000002 is damaged, and training had started from it: {reason}."])
    assert second == (2, [])
    skipped: list[str] = []
    assert latest(directory, skipped.append, verified=False).manifest.step == 1
    assert len(skipped) == 1


def test_a_state_whose_structure_is_damaged_is_skipped_at_once(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    for step in (1, 2):
        write(directory, step)
    payload = tmp_path / "step-00000002" / PAYLOAD
    content = payload.read_bytes()
    for start in (content.index(b"weights"), len(content) - 10):
        payload.write_bytes(content[:start] + b"\xff" + content[start + 1 :])
        skipped: list[str] = []
        assert (latest(directory, skipped.append, verified=False).manifest.step, len(skipped)) == (1, 1)


def test_the_digest_comes_first_where_no_note_can_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(a_directory(tmp_path), 1)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    assert read(tmp_path / "step-00000001", verified=False).is_verified


class Job:
    """A worker with a launcher; it can resume in a second group."""

    def __init__(self, checkpoints: Path, steps: int) -> None:
        config = a_config(checkpoints, steps)
        stop = StopRequest(grace_seconds=1, leave=exit_immediately)
        self._agent, worker_end = socket.socketpair()
        progress, control = make_progress(config, HERE), Control(worker_end, {}, generation=1)
        self.process = ProcessContext.outside_groups(HERE, progress, stop, time.time(), control)
        self.trainer = Trainer(config, Lines(), self.process)

    def start(self) -> object:
        return self.trainer.start(replace(self.process, group=Group.single_rank()))

    def restart(self) -> None:
        self.trainer.teardown_group()
        assert self.start() is None

    def run(self) -> None:
        self.trainer.run(replace(self.process, group=Group.single_rank()))

    def train(self) -> None:
        while not self.trainer.is_done:
            self.trainer.train_step()

    @property
    def weight(self) -> float:
        return self.trainer.state.context.model.get_parameter("weight").item()

    def close(self) -> None:
        with self._agent:
            self._agent.shutdown(socket.SHUT_WR)
            while self._agent.recv(1 << 16):
                pass  # until the other end is closed, too


MakeJob = Callable[[Path, int], Job]


def a_config(checkpoints: Path, steps: int) -> Config:
    changes = {"schedule": ScheduleName.CONSTANT, "checkpoint_dir": checkpoints, "checkpoint_steps": 2}
    return lines_config(epochs=9, max_steps=steps, **changes)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Checkpoints of the steps 2 and 4, the last of which is damaged."""
    run(a_config(tmp_path / "c", 4), Lines(), env=HERE)
    damage(tmp_path / "c" / "step-00000004")
    return tmp_path / "c"


@pytest.fixture
def make_job() -> Iterator[Callable[[Path, int], Job]]:
    with ExitStack() as stack:
        yield lambda checkpoints, steps: stack.enter_context(closing(Job(checkpoints, steps)))


@pytest.fixture
def may_verify(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    allowed, verify = threading.Event(), checkpoint_files.verify_files

    def when_allowed(*args: object) -> None:
        allowed.wait()
        verify(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_files, "verify_files", when_allowed)
    return allowed


def test_steps_from_damaged_state_are_dropped(stored: Path, may_verify: threading.Event, make_job: MakeJob) -> None:
    job = make_job(stored, 7)
    assert job.start() is None
    assert not job.trainer.train_step()  # step 5 is trained before the digest is known
    assert job.trainer.state.step == 5
    may_verify.set()
    with pytest.raises(GroupEnded):
        job.trainer.train_step()  # the save of step 6 waits for the digest
    assert {path.name for path in stored.glob("step-*")} == {"step-00000002", "step-00000004"}
    job.restart()
    assert job.trainer.state.step == 2
    job.train()
    job.trainer.finish()
    undisturbed = make_job(stored.with_name("undisturbed"), 7)
    undisturbed.start()
    undisturbed.train()
    assert job.weight == undisturbed.weight


def test_a_damaged_checkpoint_explains_an_error_of_the_first_step(
    stored: Path, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(stored, 7)
    with monkeypatch.context() as patch:
        patch.setattr(job.trainer, "train_step", lambda: 1 / 0)
        with pytest.raises(GroupEnded, match="the checkpoint of step 4, which is damaged"):
            job.run()
        job.trainer.teardown_group()
        with pytest.raises(ZeroDivisionError):
            job.run()


def test_a_finished_run_is_reported_only_when_the_digest_is_right(stored: Path, make_job: MakeJob) -> None:
    job = make_job(stored, 4)
    with pytest.raises(GroupEnded):
        job.start()
    job.restart()
    assert job.trainer.state.step == 2


def test_a_group_without_a_digest_leaves_no_state(stored: Path, may_verify: threading.Event, make_job: MakeJob) -> None:
    shutil.rmtree(stored / "step-00000002")
    job = make_job(stored, 7)
    job.start()
    job.trainer.train_step()
    job.restart()  # a peer is lost
    assert job.trainer.state.step == 4
    may_verify.set()
    with pytest.raises(GroupEnded):
        job.train()
    job.restart()
    fresh = make_job(stored.with_name("fresh"), 7)
    fresh.start()
    assert job.trainer.state.step == 0
    assert job.weight == fresh.weight


MIB = 1 << 20


def a_state() -> dict[str, Any]:
    """Every kind of value that a checkpoint holds."""
    tied = torch.arange(40.0).view(8, 5)
    image = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    moments = {0: {"step": torch.tensor(3.0), "seen": torch.tensor([True, False])}}
    others = {"gaps": torch.arange(12).view(3, 4)[:, 1:3], "half": (torch.ones(7, dtype=torch.bfloat16), None, "word")}
    model = {"in": tied, "out": tied.detach(), "image": image, "empty": torch.empty(0, 3)}
    return {"model": model, "optimizer": {"state": moments, "groups": [{"lr": 0.1}]}, **others}


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
    for name, size in (("_CHUNK_BYTES", 48), ("_BUCKET_BYTES", 24), ("_SMALL_BYTES", 32)):
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


def test_a_rank_is_sent_what_it_does_not_see_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_state_that_one_rank_lacks_is_sent_to_it_alone_and_into_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"model": {"weight": torch.arange(300_000.0)}}
    send, sent = dist.broadcast, list[int]()

    def remember(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.nbytes)
        return send(tensor, *args, **kwargs)

    monkeypatch.setattr(dist, "broadcast", remember)

    def receive(group: Group) -> object:
        own = {"model": {"weight": torch.zeros(300_000)}}
        receive_options = checkpoint_broadcast.Receive(is_wanted=group.rank == 2, targets=lambda: own)
        checkpoint = Checkpoint(a_manifest(3), state=state) if group.rank == 0 else None
        found = from_rank(0, checkpoint, group, receive=receive_options).state
        is_whole = found is not None and equal(found, state)
        return is_whole, float(own["model"]["weight"].sum()) > 0, max(sent, default=0) < 10_000

    assert run_ranks(3, receive) == [(True, False, True), (False, False, True), (True, True, True)]


def test_a_rank_that_needs_no_state_passes_on_the_right_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo sends from rank 0 of four to rank 3 through rank 1, which already receives later tensors."""
    monkeypatch.setattr(state_transfer, "_SMALL_BYTES", 1)
    state = {str(number): torch.full((250_000,), float(number)) for number in range(40)}

    def receive(group: Group) -> object:
        received = broadcast_state(state if group.rank == 0 else None, 0, group, wanted=group.rank != 1)
        return None if received is None else [name for name in state if not received[name].equal(state[name])]

    assert run_ranks(4, receive) == [[], None, [], []]
