"""What ``capacity`` says of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from kubectl_ddp.local import stock


def test_this_machine_is_told_with_its_cores_and_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kubectl_ddp", "capacity", "--local", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    told = json.loads(done.stdout)
    [machine] = told["machines"]
    assert (told["kind"], told["where"], told["unread"]) == ("Capacity", "local", [])
    assert machine["cpu_cores"] == len(os.sched_getaffinity(0))
    assert 0 < machine["memory_bytes_free"] < machine["memory_bytes"]
    nodes = next(gang["nodes"] for gang in told["fits"] if not gang["gpus"])
    assert nodes == min(machine["cpu_cores"], machine["memory_bytes_free"] // 2**31)


def test_the_memory_is_what_the_kernel_says_and_the_rest_is_taken() -> None:
    found = stock.read()
    assert isinstance(found.nodes, list)
    whole = int(found.nodes[0]["status"]["allocatable"]["memory"])
    assert whole == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
