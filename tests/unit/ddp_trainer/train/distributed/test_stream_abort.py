"""Leaving a group whose collectives run on streams, on a model of NCCL's rules; two ranks are two threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from ddp_trainer.common.constants import Exit
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed import group_teardown, stream_abort
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.group_store import GroupStore
from ddp_trainer.train.distributed.stream_abort import StreamAbort, Streams
from ddp_trainer.train.utils import errors
from ddp_trainer.train.utils.errors import BadConfig, BadData, PeerLost, end_for_lost_peer
from tests.support import stream_model
from tests.support.ports import free_port
from tests.support.stream_model import ModelStreams, StreamModel

CPU = torch.device("cpu")
ACT = {"DDP_ON_HANG": "act"}
SOON = 60.0
"""Timeout of events that have to happen, in seconds."""


@pytest.fixture
def pair() -> Iterator[list[StreamModel]]:
    """Two ranks of one communicator."""
    store = dist.HashStore()  # type: ignore[attr-defined] # documented, but not in __all__
    with ThreadPoolExecutor(2) as pool:
        gloo = pool.map(lambda rank: ProcessGroupGloo(store, rank, 2, timeout=timedelta(minutes=10)), range(2))
        ranks = [StreamModel(backend) for backend in gloo]
    yield ranks
    for rank in ranks:
        rank.abort()


class Ends:
    """Replaces the end of the process."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.came = threading.Event()

    def __call__(self, why: str) -> None:
        self.why.append(why)
        self.came.set()

    def wait(self) -> list[str]:
        assert self.came.wait(SOON)
        return [why.removeprefix("This process ends with its group: ") for why in self.why]


class Fake:
    """A communicator that notes its abort."""

    def __init__(self, name: str, noted: list[str], until: threading.Event | None = None) -> None:
        self._name, self._noted, self._until = name, noted, until

    def abort(self) -> None:
        self._noted.append(self._name)
        if self._until is not None:
            self._until.wait()


def group_of(abort: StreamAbort) -> Group:
    return Group(0, 2, stream_model.NAME, CPU, abort=abort)


def aborting(monkeypatch: pytest.MonkeyPatch, *communicators: Any, limit: float = SOON) -> tuple[StreamAbort, Ends]:
    monkeypatch.setattr(stream_abort, "list_process_groups", lambda: list(communicators))
    ends = Ends()
    return StreamAbort(ModelStreams(), CPU, ends, limit_seconds=limit), ends


def test_an_error_of_a_step_is_a_lost_peer_after_an_abort_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    abort, _ = aborting(monkeypatch)
    group = group_of(abort)
    with pytest.raises(ZeroDivisionError), group.convert_abort_errors():
        1 / 0  # noqa: B018
    abort.finish()
    with pytest.raises(PeerLost), group.convert_abort_errors():
        1 / 0  # noqa: B018
    with pytest.raises(BadData), group.convert_abort_errors():
        raise BadData("The samples are missing.")


def test_the_group_of_all_ranks_is_aborted_first_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    others = (Fake("some", noted), Fake("others", noted))
    abort, ends = aborting(monkeypatch, Fake("all", noted, threading.Event()), *others, limit=1.0)
    abort.begin()
    abort.begin()
    assert ends.wait() == ["aborting its communicators took more than 1 s."]
    assert noted[0] == "all"
    assert sorted(noted[1:]) == ["others", "some"]


def test_a_process_ends_whose_device_does_not_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    abort, ends = aborting(monkeypatch, limit=0.3)
    monkeypatch.setattr(stream_model, "is_stuck", stuck := threading.Event())
    stuck.set()
    abort.begin()
    assert ends.wait() == ["cpu did not come to rest within 0.3 s of the abort."]
    stuck.clear()


def test_a_process_ends_whose_device_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    abort, ends = aborting(monkeypatch)
    monkeypatch.setattr(stream_model, "_faults", [RuntimeError("CUDA error: uncorrectable ECC error encountered.")])
    abort.begin()
    assert ends.wait() == ["CUDA error: uncorrectable ECC error encountered."]


def test_a_process_that_ends_so_exits_with_the_code_of_a_lost_peer_and_leaves_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(errors.os, "_exit", codes.append)
    end_for_lost_peer("This process ends with its group.", tmp_path / "error.json")
    assert codes == [Exit.RENDEZVOUS_LOST]
    assert "This process ends with its group." in (tmp_path / "error.json").read_text()
    assert capsys.readouterr().err == "error: This process ends with its group.\n"


def begin_another(group: Group, rank: StreamModel) -> None:
    rank.allreduce([torch.ones(2)])
    group.mark_reduced()


def begin_next_step(group: Group, _: StreamModel) -> None:
    group.mark_reduced()
    group.clear_reduced_mark()


@pytest.mark.parametrize(
    ("then", "is_ahead"),
    [
        pytest.param(lambda group, _: group.mark_reduced(), True, id="reduced"),
        pytest.param(begin_another, False, id="a reduction is under way"),
        pytest.param(begin_next_step, False, id="the step before was reduced"),
    ],
)
def test_a_step_is_ahead_only_if_it_was_reduced_before_the_abort(
    pair: list[StreamModel], monkeypatch: pytest.MonkeyPatch, then: Callable[[Group, StreamModel], None], is_ahead: bool
) -> None:
    abort, _ = aborting(monkeypatch, pair[0])
    group = group_of(abort)
    group.clear_reduced_mark()
    for work in [rank.allreduce([torch.ones(2)]) for rank in pair]:
        assert work._job.over.wait(SOON)
    then(group, pair[0])
    abort.finish()
    group.mark_reduced()  # as the main thread may, which has not noticed
    assert group.is_reduction_complete is is_ahead


def test_a_step_begun_after_the_abort_is_not_ahead(pair: list[StreamModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """The step reads its decision just before the abort sets the flag."""
    abort, _ = aborting(monkeypatch, pair[0])
    group = group_of(abort)
    group.mark_reduced()
    abort.finish()
    assert group.is_reduction_complete
    group.clear_reduced_mark()
    group.mark_reduced()
    assert not group.is_reduction_complete


class SilentDriver(ModelStreams):
    """A driver whose events never return from a query, as with a blocked stream."""

    def mark(self) -> Any:
        return SimpleNamespace(record=lambda: None, query=threading.Event().wait)


def test_a_driver_that_does_not_answer_holds_up_no_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    aborting(monkeypatch, Fake("all", noted))
    abort = StreamAbort(SilentDriver(), CPU, Ends())
    abort.mark()
    abort.finish()
    assert noted == ["all"]
    assert not abort.is_reduction_complete


def test_a_group_is_not_outlived_before_its_first_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(aborting(monkeypatch)[0])
    monkeypatch.setitem(stream_abort.STREAMS, stream_model.NAME, ModelStreams())
    assert group.can_survive_group_end
    group.is_starting = True
    assert not group.can_survive_group_end


@pytest.mark.parametrize(
    ("given", "obstacle"),
    [
        ({}, "the launcher does not end hanging ranks (--on-hang act)"),
        (ACT | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, "stays on with TORCH_NCCL_ASYNC_ERROR_HANDLING=3"),
        (ACT | {"TORCH_NCCL_DESYNC_DEBUG": "1"}, "ends the process with TORCH_NCCL_DESYNC_DEBUG=1"),
        (ACT | {"TORCH_DISTRIBUTED_DEBUG": "detail"}, "ends the process with TORCH_DISTRIBUTED_DEBUG=detail"),
    ],
)
def test_the_watchdog_stays_on_and_the_reason_is_returned(given: dict[str, str], obstacle: str) -> None:
    environ = dict(given)
    assert Streams().disable_watchdog(environ).removeprefix("torch's watchdog ") == obstacle
    assert environ.keys() <= {*given, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS"}


def test_a_process_that_survives_overrides_what_would_hold_up_or_end_it() -> None:
    environ = ACT | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_ENABLE_MONITORING": "1"}
    assert Streams().disable_watchdog(environ) == ""
    off = "ASYNC_ERROR_HANDLING", "RETHROW_CUDA_ERRORS", "DUMP_ON_TIMEOUT", "ENABLE_MONITORING"
    expected = dict.fromkeys((f"TORCH_NCCL_{name}" for name in off), "0")
    assert environ == ACT | expected | {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1"}


def test_a_process_that_cannot_survive_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    group_teardown._warn_of_restart.cache_clear()
    env = Environment.from_env({})
    for _ in range(2):
        assert group_teardown.abort_of("nccl", env, CPU) is None
    [logged] = caplog.records
    assert "because the launcher does not end hanging ranks (--on-hang act)" in logged.getMessage()


def test_surviving_on_nccl2_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_teardown, "is_nccl2", lambda backend: backend == "nccl")
    with pytest.raises(BadConfig, match="does not work with nccl2") as caught:
        group_teardown.abort_of("nccl", Environment.from_env({}), CPU)
    assert "TORCH_DIST_USE_NCCL2=0" in str(caught.value)
    assert group_teardown.abort_of("gloo", Environment.from_env({}), CPU) is None


def test_ranks_that_agreed_to_end_wait_for_each_other_before_they_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    noted: list[str] = []
    abort, _ = aborting(monkeypatch, Fake("all", noted))
    group = group_of(abort)
    group._meeting = GroupStore(store, "here", "nccl", timedelta(seconds=SOON))
    monkeypatch.setattr("ddp_trainer.train.distributed.group_teardown._LEAVE_TIMEOUT", timedelta(seconds=SOON))
    leaving = threading.Thread(target=group.free_device, kwargs={"agreed": True})
    leaving.start()
    leaving.join(0.5)
    assert (leaving.is_alive(), noted) == (True, [])
    other = dist.TCPStore("127.0.0.1", port, 2, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    GroupStore(other, "here", "nccl", timedelta(seconds=SOON)).await_all(2, "left")
    leaving.join(SOON)
    assert noted == ["all"]
