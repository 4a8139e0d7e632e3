"""Ctrl-C, and Ctrl-C again by those who cannot wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from kubectl_ddp.engines import ENGINES
from tests.support.api_server import Answer, ApiServer, kubeconfig, serving

SLOW_TO_END = """
import atexit, sys, time
from kubectl_ddp.__main__ import main

def tidy_up():
    print("tidying up", flush=True)
    time.sleep(60)

atexit.register(tidy_up)
sys.exit(main())
"""


def test_a_second_ctrl_c_ends_a_list_at_once_and_leaves_no_traceback(tmp_path: Path) -> None:
    with serving(ApiServer()) as server:
        requests = [f"GET /apis/{kind.api_version}/namespaces/team/{kind.plural}" for kind in ENGINES.values()]
        for item in requests:
            server.next(item, Answer(200, cut=True, silence=60.0))
        command = [sys.executable, "-c", SLOW_TO_END, "list", "--kubeconfig", str(kubeconfig(tmp_path, server.url))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for item in requests:
            server.wait_until_answered(item)
        # A signal after Python's last check and before its wait would not interrupt the wait.
        while "futex" not in Path(f"/proc/{process.pid}/wchan").read_text():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "tidying up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (-signal.SIGINT, "error: Interrupted.\n")


def test_who_has_ctrl_c_ignored_is_not_interrupted() -> None:
    probe = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from kubectl_ddp.util.process import restore_default_handler, install_interrupt_handler\n"
        "install_interrupt_handler(); os.kill(os.getpid(), signal.SIGINT)\n"
        "restore_default_handler(); os.kill(os.getpid(), signal.SIGINT)\n"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False, timeout=60).returncode == 0
