"""Check which ports a pod reaches on a cluster that enforces network policies."""

from __future__ import annotations

import json
from collections.abc import Collection

from bench.drivers.node_access import ANSWER
from ddp_trainer.common.constants import Label
from tests.cluster.live_cluster import RESTRICTED, Namespace, until

TRIES = 3
"""Failed connections before a port counts as closed."""
PATIENCE_SECONDS = 60
"""Policies apply a moment after the pod starts: until then a port may still open or close."""


def knock(
    space: Namespace, name: str, doors: dict[str, tuple[str, int]], *, to_open: Collection[str] = ()
) -> dict[str, bool]:
    """Return which doors a new pod of ``space`` reaches, after waiting for ``to_open`` to open and others to close."""
    program = (
        "import json, socket, sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        f"end = time.monotonic() + {PATIENCE_SECONDS}\n"
        "doors = json.loads(sys.argv[1])\n"
        "def opens(name):\n"
        "    closed = 0\n"
        f"    while closed < {TRIES}:\n"
        "        is_late = time.monotonic() >= end\n"
        "        try:\n"
        "            socket.create_connection(tuple(doors[name]), 2).close()\n"
        "            if name in sys.argv[2:] or is_late:\n"
        "                return True\n"
        "        except OSError:\n"
        "            closed += name not in sys.argv[2:] or is_late\n"
        "        time.sleep(0.5)\n"
        "    return False\n"
        "with ThreadPoolExecutor() as pool:\n"
        "    print(json.dumps(dict(zip(doors, pool.map(opens, doors)))))\n"
    )
    container = {
        "name": "stranger",
        "image": space.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", program, json.dumps(doors), *to_open],
        "securityContext": RESTRICTED,
    }
    of_another_job = {Label.JOB: "another"}
    pod = {
        "metadata": {"name": name, "labels": of_another_job},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    space.api.create(space.path("v1", "pods"), pod)
    path = space.path("v1", "pods", name)
    until("an answer", lambda: space.api.get(path)["status"]["phase"] in {"Succeeded", "Failed"})
    answer: dict[str, bool] = json.loads(space.api.text(f"{path}/log", limits=ANSWER))
    return answer
