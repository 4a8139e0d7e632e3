"""The heartbeat thread of a worker, and the private parts of torch that it uses."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch._C._distributed_c10d as c10d_extension

from ddp_trainer.launch.in_worker import heartbeat
from ddp_trainer.process import heartbeat_page
from tests.support.recorder_server import entry, record


class Group:
    """Process group with the methods that the thread uses."""

    def __init__(self, size: int, begun: int = 7) -> None:
        self._size, self.begun = size, begun

    def size(self) -> int:
        return self._size

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class FakeC10d(ModuleType):
    """Module with a default group in the form of torch's."""

    def __init__(self) -> None:
        super().__init__(heartbeat.C10D)
        self._world = SimpleNamespace(default_pg=None, pg_map={})

    def _update_default_pg(self, group: Any) -> None:
        self._world.default_pg = group
        self._world.pg_map = {} if group is None else {group: "gloo"}


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> memoryview[float]:
    path = str(tmp_path / "p")
    heartbeat_page.create(path)
    monkeypatch.setenv(heartbeat_page.VARIABLE, path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    return heartbeat_page.open_page(path)


def followed() -> tuple[FakeC10d, heartbeat.Heartbeat]:
    module = FakeC10d()
    watcher = heartbeat.track_default_group(module)
    assert watcher is not None
    return module, watcher


def test_collectives_are_those_of_nccl_and_of_other_backends_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    of_nccl = (
        entry(1, "nccl:all_reduce") | {"time_created_ns": 10},
        entry(2, "nccl:all_gather") | {"time_created_ns": 30},
    )
    of_gloo = entry(1, group=3) | {"time_created_ns": 20}, entry(5) | {"time_created_ns": 40}
    monkeypatch.setattr(c10d_extension, "_dump_nccl_trace_json", lambda *_: record({}, *of_nccl), raising=False)
    monkeypatch.setattr(c10d_extension, "_dump_fr_trace_json", lambda *_: record({}, *of_gloo))
    collectives = [(group, number, name) for group, number, name, _, _ in heartbeat.collectives()]
    assert collectives == [("0", 1, "all_reduce"), ("3", 1, "all_reduce"), ("0", 2, "all_gather")]


def test_a_group_begins_the_beat_and_its_end_ends_it(cells: memoryview[float]) -> None:
    module, watcher = followed()
    try:
        module._update_default_pg(Group(2))
        assert cells[heartbeat_page.HAS_GROUP] == 1
        assert (cells[heartbeat_page.SEQUENCE], cells[heartbeat_page.TOTAL]) == (7, 7)
        module._update_default_pg(None)
        assert cells[heartbeat_page.HAS_GROUP] == 0
        module._update_default_pg(Group(2, begun=0))
        assert (cells[heartbeat_page.HAS_GROUP], cells[heartbeat_page.TOTAL]) == (1, 0)
    finally:
        watcher.stop()


def test_a_group_of_one_rank_and_a_fork_write_no_heartbeat(
    cells: memoryview[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = followed()
    module._update_default_pg(Group(1))
    assert cells[heartbeat_page.HAS_GROUP] == 0
    monkeypatch.setattr(os, "getpid", lambda: -1)
    module._update_default_pg(Group(2))
    assert cells[heartbeat_page.HAS_GROUP] == 0


def test_a_torch_without_the_private_function_has_no_heartbeat(cells: memoryview[float]) -> None:
    assert heartbeat.track_default_group(ModuleType(heartbeat.C10D)) is None
    assert cells[heartbeat_page.HAS_GROUP] == 0


def test_a_backend_that_does_not_count_is_no_reason_to_fail(cells: memoryview[float]) -> None:
    module, watcher = followed()
    try:
        group: Any = Group(2)
        group._get_sequence_number_for_group = None
        module._update_default_pg(group)
        assert (cells[heartbeat_page.HAS_GROUP], cells[heartbeat_page.SEQUENCE]) == (1, -1)
    finally:
        watcher.stop()


def test_the_place_is_the_innermost_line_that_is_no_library_s() -> None:
    frames = [
        SimpleNamespace(filename="/home/me/train.py", lineno=12, name="step"),
        SimpleNamespace(filename="/v/lib/python3.11/site-packages/torch/x.py", lineno=3, name="forward"),
        SimpleNamespace(filename=os.__file__, lineno=1, name="read"),
    ]
    assert heartbeat.place_of(frames) == "train.py:12 in step"


def test_a_lazy_module_is_not_loaded_to_list_what_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "users_own"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('it was loaded')")
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "scipy", ModuleType("scipy"))  # without a spec, like a module that a script makes
    heartbeat.write_imports(str(tmp_path / "imports"))
    modules = (tmp_path / "imports").read_text().splitlines()
    assert {"torch", "torch.distributed", "ddp_trainer"} <= {*modules}
    assert not {"pandas", "users_own", "scipy", "os"} & {*modules}
