"""Where a store listens."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from ddp_trainer.common.constants import Env
from tests.support.launch_harness import secret_file
from tests.support.ports import free_port


def start(folder: Path, address: str, port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ddp_trainer", "store", "--port", str(port)],
        env=os.environ | {Env.POD_IP: address, Env.SECRET_FILE: str(secret_file(folder))},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_stores_of_two_pods_on_one_machine_share_a_port_number(tmp_path: Path) -> None:
    port = free_port()
    stores = [start(tmp_path, address, port) for address in ("127.0.0.2", "127.0.0.3")]
    try:
        lines = [store.stderr.readline() for store in stores if store.stderr]
        assert lines == [f"ddp-store: listening on 127.0.0.{last}:{port}\n" for last in (2, 3)]
    finally:
        for store in stores:
            store.send_signal(signal.SIGTERM)
            store.communicate(timeout=30)


def test_a_store_that_is_told_to_stop_before_its_run_is_over_has_not_succeeded(tmp_path: Path) -> None:
    with start(tmp_path, "127.0.0.2", 0) as store:
        assert store.stderr
        store.stderr.readline()
        store.send_signal(signal.SIGTERM)
        assert store.wait(timeout=30) == 143
