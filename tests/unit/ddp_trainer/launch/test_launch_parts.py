"""Small parts of the launcher: ranks, endpoints, environment, reports, settings, log lines."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.launch import config as settings
from ddp_trainer.launch.agent.termination_report import TerminationReport, fit
from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.host.endpoint import Endpoint, is_this_host, parse_endpoint, pod_address, reserve_port
from ddp_trainer.launch.host.environment import Launch, common_environment, place_in
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.launch.protocol.generation import Assignment, Generation, Node
from ddp_trainer.launch.rendezvous.group_formation import choose, in_order
from ddp_trainer.launch.workers.logs import LogForwarder, LogSpec, Prefix, Std, parse_std
from ddp_trainer.launch.workers.worker_group import with_local_rank
from ddp_trainer.net.arguments import node_index
from tests.support.launch_simulation import a_failure, place_of


def a_node(name: str, index: int | None = None, size: int = 2, role: str = "default") -> Node:
    return Node(token=f"t-{name}", name=name, index=index, local_world_size=size, role=role)


@pytest.mark.parametrize(
    ("module", "files"),
    [
        ("pkg.sub.train", ["pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/train.py"]),
        ("pkg.sub", ["pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/__main__.py"]),
        ("pkg.bare.train", ["pkg/__init__.py", "pkg/bare/train.py"]),
        ("pkg", []),
        ("pkg.absent", []),
        ("alone", ["alone.py"]),
        ("alone.absent", []),
    ],
)
def test_the_files_of_a_module_are_found_without_an_import(
    module: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "bare").mkdir()
    for name in ("__init__.py", "sub/__init__.py", "sub/train.py", "sub/__main__.py", "sub.py", "bare/train.py"):
        (tmp_path / "pkg" / name).write_text("raise RuntimeError")
    (tmp_path / "alone.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    program = settings.program_of(parse(["-m", module], {}), {})
    assert program.files == tuple(tmp_path / file for file in files)


@pytest.mark.parametrize(
    ("flags", "layout", "modules"),
    [
        (
            ["--parallel", "shard=1:2,pp=2"],
            "tp=2",
            ["torch.distributed.fsdp", "torch._dynamo", "torch.distributed.pipelining"],
        ),
        (["--parallel=replicate=4,shard=1"], "", []),
        ([], "tp=2", ["torch.distributed.tensor.parallel", "torch._dynamo"]),
        (["--parallel", "yes"], "shard=2", []),
        (["--parallel"], "", []),
    ],
)
def test_the_fork_server_imports_what_a_layout_needs(flags: list[str], layout: str, modules: list[str]) -> None:
    arguments = parse(["train.py", *flags], {})
    assert settings.preload_of(arguments, {"DDP_PARALLEL": layout}) == modules


class TestRanks:
    @pytest.mark.parametrize(
        ("environ", "node_rank", "index"),
        [
            ({"DDP_POD_NAME": "job-worker-12"}, 3, 12),
            ({"DDP_POD_NAME": "job-3-x7k2p", "JOB_COMPLETION_INDEX": "3"}, None, 3),
            ({"DDP_POD_NAME": "laptop"}, None, None),
            ({}, 3, 3),
        ],
    )
    def test_the_index_comes_from_where_the_pod_was_made(
        self, environ: dict[str, str], node_rank: int | None, index: int | None
    ) -> None:
        assert node_index(environ, node_rank) == index

    def test_nodes_without_an_index_come_last_in_natural_order(self) -> None:
        nodes = [a_node("node10"), a_node("node9"), a_node("b", 7), a_node("a", 8)]
        assert [node.name for node in in_order(nodes)] == ["b", "a", "node9", "node10"]

    def test_members_keep_their_places_when_there_are_too_many(self) -> None:
        nodes = [a_node("a", 0), a_node("b", 1), a_node("c", 2)]
        assert [node.name for node in choose(nodes, {"t-b", "t-c"}, 2)] == ["b", "c"]


class TestEndpoints:
    def test_are_read_as_torchrun_does(self) -> None:
        assert parse_endpoint("store:1") == Endpoint("store", 1)
        assert parse_endpoint("[::1]") == Endpoint("::1", 29400)

    @pytest.mark.parametrize(("host", "is_here"), [("localhost", True), ("::1", True), ("192.0.2.1", False)])
    def test_this_host_is_one_that_a_socket_can_be_bound_to(self, host: str, is_here: bool) -> None:
        assert is_this_host(host) is is_here


ONE_GPU_EACH = {"virtual_local_rank": True}


class TestEnvironment:
    def launch(self, **changes: object) -> Launch:
        return Launch(**{"run_id": "r", "local_world_size": 2, "max_restarts": 3, **changes})

    def generation(self) -> Assignment:
        nodes = (a_node("a", size=4), a_node("b", size=2), a_node("c", size=2, role="other"))
        restarts = {"resize": 3, "failure": 1}
        group = Generation(number=5, fence=5, nodes=nodes, master_address="10.0.0.1", master_port=7, restarts=restarts)
        return place_of(group, "t-b")

    def worker(self, base: dict[str, str], local_rank: int, **changes: object) -> dict[str, str]:
        launch = self.launch(**changes)
        common = common_environment(base, launch)
        return {**common, **place_in(common, launch, self.generation(), local_rank, "/e")}

    @pytest.mark.parametrize(
        ("base", "local_rank", "changes", "expected"),
        [
            ({}, 1, {}, {"RANK": "5", "WORLD_SIZE": "8", "GROUP_RANK": "1", "LOCAL_RANK": "1"}),
            ({}, 1, {}, {"ROLE_RANK": "5", "ROLE_WORLD_SIZE": "6"}),
            ({}, 0, {}, {"TORCHELASTIC_RESTART_COUNT": "1", "DDP_RESTARTS": '{"failure": 1, "resize": 3}'}),
            ({"OMP_NUM_THREADS": "8", "RANK": "99"}, 0, {}, {"OMP_NUM_THREADS": "8", "RANK": "4"}),
            ({"DDP_NODES": "9:9"}, 0, {"nodes": "1:4"}, {"DDP_NODES": "1:4"}),
            ({"DDP_ON_HANG": "warn"}, 0, {"on_hang": "act"}, {"DDP_ON_HANG": "act"}),
            ({"CUDA_VISIBLE_DEVICES": "4, 6"}, 1, ONE_GPU_EACH, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "6"}),
        ],
    )
    def test_a_worker_finds_its_place_and_what_its_user_has_set(
        self, base: dict[str, str], local_rank: int, changes: dict[str, object], expected: dict[str, str]
    ) -> None:
        assert expected.items() <= self.worker(base, local_rank, **changes).items()

    def test_how_nccl_treats_errors_is_torchs_choice_or_the_users(self) -> None:
        name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
        assert name not in common_environment({}, self.launch())
        assert common_environment({name: "1"}, self.launch())[name] == "1"

    def test_a_single_worker_keeps_all_cores(self) -> None:
        assert "OMP_NUM_THREADS" not in self.worker({}, 0, local_world_size=1)

    def test_one_gpu_for_two_workers_is_an_error(self) -> None:
        with pytest.raises(LaunchError, match="CUDA_VISIBLE_DEVICES=4"):
            self.worker({"CUDA_VISIBLE_DEVICES": "4"}, 1, **ONE_GPU_EACH)

    def test_the_macro_of_torchrun_is_replaced(self) -> None:
        assert with_local_rank(("--rank=${local_rank}", "$HOME"), 3) == ["--rank=3", "$HOME"]


class TestReports:
    def test_a_summary_of_many_fields_loses_the_largest_first(self) -> None:
        assert fit({"restarts": {"failure": 1}, "losses": list(range(5000))}) == '{"restarts":{"failure":1}}'

    def test_an_error_is_kept_whole_in_its_file(self, tmp_path: Path) -> None:
        report = TerminationReport({"DDP_RUN_DIR": str(tmp_path), "DDP_TERMINATION_LOG": str(tmp_path / "log")})
        report.failed(a_failure(3, rank=7), 93, {"failure": 2})
        assert json.loads((tmp_path / "error.json").read_text())["rank"] == 7
        document = json.loads((tmp_path / "log").read_text())
        assert (document["pod_exit_code"], document["exit_code"], document["restarts"]) == (93, 1, {"failure": 2})

    def test_a_report_of_a_failure_fits_with_its_error_and_the_time_breakdown(self, tmp_path: Path) -> None:
        report = TerminationReport({"DDP_TERMINATION_LOG": str(tmp_path / "log")})
        account = JobAccount(1e9, [1000.0 + number for number, _ in enumerate(JobTime)], 7, 20.0)
        failure = replace(a_failure(3, rank=7), message="ValueError: no such layer", stack="frame\n" * 9000)
        report.failed(failure, 93, {"failure": 2}, account.summary())
        text = (tmp_path / "log").read_text()
        assert len(text.encode()) <= 4096
        document = json.loads(text)
        assert (document["rank"], document["message"], document["lost_steps"]) == (7, "ValueError: no such layer", 7)
        assert document["stack"].startswith("frame")
        assert set(document["spent"]) == set(JobTime)
        assert sum(document["spent"].values()) == pytest.approx(document["seconds"], abs=0.01)

    def test_a_summary_of_an_earlier_container_is_not_ours(self, tmp_path: Path) -> None:
        (tmp_path / "summary.json").write_text('{"accuracy": 1}')
        TerminationReport({"DDP_RUN_DIR": str(tmp_path)})
        assert not (tmp_path / "summary.json").exists()

    def test_a_node_without_a_part_in_the_end_reports_what_it_was_told(self, tmp_path: Path) -> None:
        report = TerminationReport({"DDP_TERMINATION_LOG": str(tmp_path / "log")})
        report.succeeded({"resize": 1}, '{"steps": 9, "world_size": 4}', world_size=0, seconds=0.1)
        told = {"result": "succeeded", "world_size": 4, "seconds": 0.1, "steps": 9, "restarts": {"resize": 1}}
        assert json.loads((tmp_path / "log").read_text()) == told

    @pytest.mark.parametrize("text", ["[" * 4000, '{"a": ' * 600 + "1" + "}" * 600, "7", "{"], ids=len)
    def test_a_summary_that_is_none_is_left_out(self, text: str, tmp_path: Path) -> None:
        report = TerminationReport({"DDP_RUN_DIR": str(tmp_path), "DDP_TERMINATION_LOG": str(tmp_path / "log")})
        (tmp_path / "summary.json").write_text(text)
        assert json.loads(report.summary({"world_size": 2})) == {"world_size": 2}
        report.succeeded({}, text, world_size=2)
        assert json.loads((tmp_path / "log").read_text())["world_size"] == 2

    def test_a_summary_of_thousands_of_fields_is_cut_before_heartbeats_are_late(self) -> None:
        begun = time.process_time()
        assert len(fit({f"metric{number}": number for number in range(2000)})) <= 4096
        assert time.process_time() - begun < 2.0

    def test_a_full_disk_hides_nothing(self, tmp_path: Path) -> None:
        environ = {"DDP_RUN_DIR": str(tmp_path / "file" / "below"), "DDP_TERMINATION_LOG": "/proc/none"}
        report = TerminationReport(environ)
        (tmp_path / "file").touch()
        report.failed(a_failure(1), 1, {})


class TestSettings:
    def test_a_short_silence_needs_a_quick_heartbeat(self) -> None:
        conf = settings.conf_of("heartbeat_timeout=1.5, join_timeout=7")
        assert (conf.heartbeat.timeout, conf.heartbeat.interval, conf.join) == (1.5, 0.5, 7)

    @pytest.mark.parametrize(
        ("flags", "environ", "seconds"),
        [
            ([], {}, 30),
            ([], {"DDP_GRACE_SECONDS": "60"}, 55),
            ([], {"DDP_GRACE_SECONDS": "3"}, 1),
            ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12"}, 12),
            (["--shutdown-timeout", "7"], {"DDP_GRACE_SECONDS": "60"}, 7),
        ],
    )
    def test_the_grace_of_the_pod_decides_how_long_workers_may_take(
        self, flags: list[str], environ: dict[str, str], seconds: float
    ) -> None:
        assert settings.limits_of(parse([*flags, "x.py"], {}), settings.conf_of(""), environ).shutdown == seconds

    @pytest.mark.parametrize("name", ["DDP_GRACE_SECONDS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    @pytest.mark.parametrize("value", ["soon", "nan", "inf", "-3"])
    def test_a_grace_that_is_no_time_is_named_with_its_variable(self, name: str, value: str) -> None:
        with pytest.raises(LaunchError, match=f"^{name}='{value}' is not a number of seconds[.]$"):
            settings.limits_of(parse(["x.py"], {}), settings.conf_of(""), {name: value})

    @pytest.mark.parametrize(
        ("text", "environ", "count"),
        [
            ("3", {}, 3),
            ("gpu", {"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
            ("auto", {"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
            ("auto", {"CUDA_VISIBLE_DEVICES": ""}, len(os.sched_getaffinity(0))),
            ("cpu", {"CUDA_VISIBLE_DEVICES": "0"}, len(os.sched_getaffinity(0))),
        ],
    )
    def test_workers_are_counted_without_torch(self, text: str, environ: dict[str, str], count: int) -> None:
        assert settings.local_world_size_of(text, environ) == count

    @pytest.mark.parametrize("text", ["0", "-1", "two", "xpu", "gpu"])
    def test_a_count_that_cannot_be_is_named(self, text: str) -> None:
        with pytest.raises(LaunchError, match=text):
            settings.local_world_size_of(text, {"CUDA_VISIBLE_DEVICES": ""})

    @pytest.mark.parametrize(
        ("flags", "environ", "modules"),
        [
            (["x.py"], {}, []),
            (["--preload", "a, b", "x.py"], {}, ["a", "b"]),
            (["-m", "ddp_trainer", "train"], {}, ["ddp_trainer.train.cli", "ddp_trainer.train.trainer"]),
            (["--no-fork-server", "x.py"], {}, None),
            (["x.py"], {"DDP_FORK_SERVER": "0"}, None),
        ],
    )
    def test_a_fork_server_imports_its_list(
        self, flags: list[str], environ: dict[str, str], modules: list[str] | None
    ) -> None:
        assert settings.preload_of(parse(flags, {}), environ) == modules
        with pytest.raises(LaunchError, match="DDP_FORK_SERVER='yes'"):
            settings.fork_server_delay_of({"DDP_FORK_SERVER": "yes"})


class TestLines:
    @contextlib.contextmanager
    def forwarded(self, folder: Path, **options: Any) -> Iterator[tuple[int, LogForwarder]]:
        """Yield the pipe of a worker whose lines go to the file console; it is closed at the end."""
        forwarder = LogForwarder()
        with (folder / "console").open("wb") as console, contextlib.closing(forwarder):
            sink = forwarder.add(console=console.fileno(), **options)
            yield sink, forwarder
            os.close(sink)

    def test_streams_go_where_the_flags_say(self) -> None:
        spec = LogSpec(redirects=parse_std("1", "-r"), tee=parse_std("0:2", "-t"), shown=frozenset({0}))
        found = [spec.of(rank, stream) for rank, stream in ((0, Std.OUT), (0, Std.ERR), (1, Std.ERR))]
        assert found == [(True, False), (True, True), (False, False)]

    def test_lines_are_cut_at_every_kind_of_end_and_carried_whole(self, tmp_path: Path) -> None:
        files = {"file": tmp_path / "log", "filtered": tmp_path / "some"}
        with self.forwarded(tmp_path, prefix=Prefix("${rank}> ", 7), filters=("b",), **files) as (sink, _):
            for part in (b"a", b"b\r", b"\nc\rd\n\nlast"):
                os.write(sink, part)
        assert (tmp_path / "console").read_bytes() == b"7> ab\n7> c\n7> d\n7> \n7> last\n"
        assert (tmp_path / "log").read_bytes() == b"ab\r\nc\rd\n\nlast"
        assert (tmp_path / "some").read_bytes() == b"7> ab\n"

    def test_the_rank_before_a_line_is_the_one_that_the_worker_has_when_it_writes(self, tmp_path: Path) -> None:
        prefix = Prefix("[${role_name} ${rank}] ", None)
        with self.forwarded(tmp_path, prefix=prefix, file=None) as (sink, pump):
            for rank in (None, 3, 0):
                prefix.rank = rank
                os.write(sink, b"x\n")
                pump.catch_up(60)
        lines = (tmp_path / "console").read_bytes()
        assert lines == b"[${role_name} ?] x\n[${role_name} 3] x\n[${role_name} 0] x\n"

    def test_it_ends_whenever_its_last_pipe_is_closed(self, tmp_path: Path) -> None:
        for number in range(200):
            pump = LogForwarder()
            sink = pump.add(console=None, prefix=Prefix("", 0), file=tmp_path / f"log{number}")
            os.write(sink, b"last\n")
            os.close(sink)
            pump.close(timeout=5)
            assert "ddp-logs" not in {thread.name for thread in threading.enumerate()}
            assert (tmp_path / f"log{number}").read_bytes() == b"last\n"

    def test_a_full_disk_of_log_files_costs_no_line_of_the_console(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with self.forwarded(tmp_path, prefix=Prefix("", 0), file=Path("/dev/full")) as (sink, pump):
            os.write(sink, b"first\n")
            pump.catch_up()
            os.write(sink, b"second\n")
        assert (tmp_path / "console").read_bytes() == b"first\nsecond\n"
        printed = "".join(capfd.readouterr())
        assert printed.count("disk: the log file /dev/full misses output: No space left on device;") == 1

    def test_a_line_without_an_end_is_broken_before_it_fills_the_memory(self, tmp_path: Path) -> None:
        with self.forwarded(tmp_path, prefix=Prefix("", 0), file=None) as (sink, _):
            os.write(sink, b"x" * 60_000)
            os.write(sink, b"x" * 60_000)
        assert [len(line) for line in (tmp_path / "console").read_bytes().split()] == [65536, 54464]


@pytest.mark.parametrize(
    ("parse_value", "named", "texts"),
    [
        (parse_endpoint, "host:port", ["", "store:", "store:x", "store:65536", ":1", "store:-1"]),
        (settings.conf_of, "--rdzv-conf", ["x=1", "join_timeout", "join_timeout=soon", "join_timeout=-1"]),
        (settings.parse_signals, "--signals-to-handle", ["SIGNOTHING", "SIGKILL", "SIGTERM,SIGCHLD"]),
        (partial(parse_std, flag="--tee"), "--tee", ["4", "x", "0:4", "0:1,", "", "1:"]),
    ],
    ids=["endpoint", "conf", "signals", "streams"],
)
def test_an_invalid_value_is_refused(parse_value: Callable[[str], object], named: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(LaunchError, match=named):
            parse_value(text)


def test_a_reserved_port_is_in_use() -> None:
    with reserve_port() as held, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("0.0.0.0", held.getsockname()[1]))


def test_a_value_that_is_no_address_is_refused_as_that_of_the_pod() -> None:
    for address in ("10.0.0.7", "fd00::7", "fe80::7%eth0", ""):
        assert pod_address({"DDP_POD_IP": address}) == address
    with pytest.raises(LaunchError, match=r"^DDP_POD_IP='worker-0' is not an address; "):
        pod_address({"DDP_POD_IP": "worker-0"})


@pytest.mark.parametrize(
    "secret",
    ["hf_" + "a1B2" * 8, "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----", "me:hunter22@"],
)
def test_a_termination_message_holds_no_secret_and_stays_json(secret: str) -> None:
    quoted = f"no access to https://{secret}example.com" if secret.endswith("@") else f"no access with {secret}!"
    document = json.loads(fit({"message": quoted, "stack": f"a\n{quoted}\nb", "rank": 1}))
    assert secret not in f"{document['message']} {document['stack']}"
    assert "(redacted)" in document["message"]
    assert document["stack"].endswith("\nb")
