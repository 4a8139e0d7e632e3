"""Fork server of the workers: a process with their imports."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.launch.in_worker import fork_server_process
from ddp_trainer.launch.in_worker.fork_server_process import DESCRIPTORS, LENGTH, requests
from ddp_trainer.launch.in_worker.heartbeat import PRELOAD_PACKAGES
from ddp_trainer.launch.workers.fork_server import NVML_CHECK, ForkServer, imports_torch_first

EMPTY_TORCH = "class cuda: is_initialized = staticmethod(bool)"
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"

AGENT = """
import asyncio, os, pathlib, select, signal, sys
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.fork_server import ForkServer

async def main():
    children = Children(asyncio.get_running_loop())
    server = ForkServer(children, sys.executable, (), os.environ)
    {body}
    server.stop()

asyncio.run(main())
"""


def agent(tmp_path: Path, body: str, torch: str = EMPTY_TORCH) -> str:
    """Return the output of an agent that runs this body with a fork server."""
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "networkx.py").write_text(f"print(file=open({str(tmp_path / 'asked')!r}, 'a'))\n{THREAD}")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", AGENT.replace("{body}", body.strip())]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.check_output(command, text=True, timeout=60, env=environment, cwd=tmp_path)


def test_a_preloaded_module_that_starts_a_thread_is_left_out_by_the_next_server(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    imports.write_text("networkx")
    ready = "\n    while not server._poll_ready():\n        await asyncio.sleep(0.01)\n"
    agent(tmp_path, f"server.start(pathlib.Path({str(imports)!r})){ready}")
    assert (tmp_path / "asked").read_text().count("\n") == 1


def test_a_server_that_keeps_dying_is_not_restarted_without_end(tmp_path: Path) -> None:
    body = """
    for _ in range(9):
        server.start()
        print(server._control is not None)
        while server._control:
            await asyncio.sleep(0.01)
    """
    assert agent(tmp_path, body, torch="raise SystemExit(1)").split() == ["True"] * 3 + ["False"] * 6


def test_a_server_imports_a_later_list_too_and_forks_only_after_it(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("print('imported', file=open('sklearn-was', 'w'))")
    imports = tmp_path / "imports"
    imports.write_text("sklearn not_preloaded.by_anybody")
    body = f"""
    ready = asyncio.Event()
    server.start()
    server.preload(pathlib.Path({str(imports)!r}))
    server.call_when_ready(ready.set)
    await ready.wait()
    print(server.is_importing, pathlib.Path("sklearn-was").read_text())
    ready.clear()
    server.preload(pathlib.Path({str(imports)!r}))
    print(server.is_importing, server.fork({{}}, 1, 2, 1))
    server.call_when_ready(ready.set)
    await ready.wait()
    print(server.fork({{}}, 1, 2, 1) is not None)
    """
    assert agent(tmp_path, body).split() == ["False", "imported", "True", "None", "True"]


@pytest.mark.parametrize(
    ("script", "begins"),
    [
        ("import torch", True),
        ("import sys\nfrom torch import nn", True),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", False),
        ("import torchvision", False),
        ("def main():\n    import torch", False),
    ],
)
def test_torch_is_imported_early_where_a_script_begins_with_it(tmp_path: Path, script: str, begins: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(script)
    assert imports_torch_first([file]) is begins


def test_a_package_that_changes_the_environment_first_has_its_torch_imported_late(tmp_path: Path) -> None:
    package, file = tmp_path / "__init__.py", tmp_path / "train.py"
    file.write_text("import torch")
    package.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'")
    assert not imports_torch_first([package, file])
    package.write_text("")
    assert imports_torch_first([package, file])
    assert not imports_torch_first([])


def test_a_fork_that_is_killed_before_its_release_is_reported_as_dead(tmp_path: Path) -> None:
    body = """
    server.start()
    while not server._poll_ready():
        await asyncio.sleep(0.01)
    ended = asyncio.get_running_loop().create_future()
    pid = server.fork({}, 1, 2, 1)
    children.add_child_handler(pid, ended.set_result)
    os.kill(pid, signal.SIGKILL)
    gate = select.poll()
    gate.register(server._gate, 0)  # until the fork server has closed its copy too
    gate.poll()
    server.release()
    print(await ended)
    """
    assert agent(tmp_path, body).split() == [str(-signal.SIGKILL)]


TORCH = """
import os
class cuda:
    OWNER = os.getpid()
    @staticmethod
    def is_initialized(): return {has_context} and not cuda._is_in_bad_fork()
    @staticmethod
    def _is_in_bad_fork(): return {has_touched} and os.getpid() != cuda.OWNER
"""


@pytest.mark.parametrize(
    ("has_context", "has_touched", "forks"), [(False, False, True), (False, True, False), (True, True, False)]
)
def test_a_fork_tells_if_it_can_use_cuda(tmp_path: Path, has_context: bool, has_touched: bool, forks: bool) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(has_context=has_context, has_touched=has_touched))
    control, child_end = socket.socketpair()
    control.settimeout(60)
    command = [sys.executable, fork_server_process.__file__, str(os.getpid()), str(child_end.fileno()), "torch"]
    with control:
        with child_end:
            environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
            process = subprocess.Popen(command, env=environ, pass_fds=[child_end.fileno()])
        answer = control.recv(8)  # nothing where the server has ended
    process.wait(60)
    assert (answer == fork_server_process.READY) is forks


def test_a_look_for_gpus_does_not_touch_cuda_in_a_server() -> None:
    environments = []

    class Recorder:
        def start(self, _: list[str], environment: dict[str, str], *__: object, **___: object) -> int:
            environments.append(environment)
            raise OSError

    ForkServer(Recorder(), sys.executable, [], {"A": "b"}).start()  # type: ignore[arg-type] # all that is called
    assert environments == [{NVML_CHECK: "1", "A": "b"}]


def test_an_agent_without_a_free_descriptor_does_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", fail)
    fork_server = ForkServer(None, sys.executable, [], {})  # type: ignore[arg-type] # not called
    fork_server.start()
    assert fork_server.fork({}, 1, 2, 1) is None


def test_the_server_of_a_spare_takes_the_imports_of_its_script_that_do_not_read_the_rank(tmp_path: Path) -> None:
    script, broken = tmp_path / "train.py", tmp_path / "broken.py"
    script.write_text(
        "import lightning, os\nimport torch.nn.functional as F\nfrom sklearn import datasets\nfrom . import mine\n"
        "try:\n    import pandas\nexcept ImportError:\n    pass\n"
        "def late():\n    import scipy\n"
    )
    broken.write_text("import torch\n1 +\n")
    names = fork_server_process.names_in([str(broken), str(tmp_path / "missing.py"), str(script)], PRELOAD_PACKAGES)
    assert names == ["torch.nn.functional", "sklearn", "sklearn.datasets", "pandas"]


@pytest.mark.parametrize(
    ("length", "body", "count"),
    [(9, b"", DESCRIPTORS), (9, b"{}", DESCRIPTORS), (2, b"{}", DESCRIPTORS - 1)],
    ids=["no body", "half a body", "too few descriptors"],
)
def test_the_descriptors_of_an_incomplete_request_are_closed(length: int, body: bytes, count: int) -> None:
    control, child_end = socket.socketpair()
    source, sink = os.pipe()
    with control:
        with child_end:
            socket.send_fds(child_end, [LENGTH.pack(length)], [sink] * count)
            child_end.sendall(body)
        os.close(sink)
        assert list(requests(control, DESCRIPTORS)) == []
    os.set_blocking(source, False)
    assert os.read(source, 1) == b""  # an open copy of the other end would raise BlockingIOError
    os.close(source)
