"""A zygote that has touched CUDA forks nobody; in real processes, with a module that stands in for torch."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddp_trainer.launch.in_worker import fork_server_process
from ddp_trainer.launch.in_worker.heartbeat import LEARNT
from ddp_trainer.launch.workers.fork_server import NVML_CHECK, ForkServer

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
def test_a_fork_tells_whether_it_could_use_cuda(
    tmp_path: Path, has_context: bool, has_touched: bool, forks: bool
) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(has_context=has_context, has_touched=has_touched))
    control, child_end = socket.socketpair()
    control.settimeout(60)
    command = [sys.executable, fork_server_process.__file__, str(os.getpid()), str(child_end.fileno()), "torch"]
    with control:
        with child_end:
            process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, pass_fds=[child_end.fileno()]
            )
        answer = control.recv(8)  # nothing where the zygote has ended
    process.wait(60)
    assert (answer == fork_server_process.READY) is forks


def test_torch_still_has_what_a_fork_asks() -> None:
    assert torch.cuda._is_in_bad_fork() is False


def test_a_look_for_gpus_does_not_touch_cuda_in_a_zygote() -> None:
    environments = []

    class Recorder:
        def start(self, _: list[str], environment: dict[str, str], *__: object, **___: object) -> int:
            environments.append(environment)
            raise OSError

    ForkServer(Recorder(), sys.executable, [], {"A": "b"}).start()  # type: ignore[arg-type] # all that is called
    assert environments == [{NVML_CHECK: "1", "A": "b"}]


def test_an_agent_without_a_free_descriptor_does_without_a_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", fail)
    fork_server = ForkServer(None, sys.executable, [], {})  # type: ignore[arg-type] # not called
    fork_server.start()
    assert fork_server.fork({}, 1, 2, 1) is None


def test_the_zygote_of_a_spare_takes_the_imports_of_its_script_that_do_not_read_the_rank(tmp_path: Path) -> None:
    script, broken = tmp_path / "train.py", tmp_path / "broken.py"
    script.write_text(
        "import lightning, os\nimport torch.nn.functional as F\nfrom sklearn import datasets\nfrom . import mine\n"
        "try:\n    import pandas\nexcept ImportError:\n    pass\n"
        "def late():\n    import scipy\n"
    )
    broken.write_text("import torch\nthis is no Python\n")
    names = fork_server_process.names_in([str(broken), str(tmp_path / "missing.py"), str(script)], LEARNT)
    assert names == ["torch.nn.functional", "sklearn", "sklearn.datasets", "pandas"]
