"""Whether a door opens to a pod of a namespace, on a cluster that enforces network policies."""

from __future__ import annotations

import json

from ddp_trainer.contract import Label
from tests.cluster.live_cluster import RESTRICTED, Namespace, until

TRIES = 3
"""How often a port is knocked at before it counts as closed: policies are enforced a moment after a pod is there."""


def knock(
    space: Namespace, name: str, doors: dict[str, tuple[str, int]], *, closing_seconds: float = 0
) -> dict[str, bool]:
    """Which doors open to a pod of ``space``, once its own policies have had so many seconds to be enforced."""
    program = (
        "import json, socket, sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        f"end = time.monotonic() + {closing_seconds}\n"
        "def opens(door):\n"
        "    closed = 0\n"
        f"    while closed < {TRIES}:\n"
        "        try:\n"
        "            socket.create_connection(door, 2).close()\n"
        "            if time.monotonic() >= end:\n"
        "                return True\n"
        "        except OSError:\n"
        "            closed += 1\n"
        "        time.sleep(0.5)\n"
        "    return False\n"
        "doors = json.loads(sys.argv[1])\n"
        "with ThreadPoolExecutor() as pool:\n"
        "    print(json.dumps(dict(zip(doors, pool.map(opens, map(tuple, doors.values()))))))\n"
    )
    container = {
        "name": "stranger",
        "image": space.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", program, json.dumps(doors)],
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
    answer: dict[str, bool] = json.loads(space.api.text(f"{path}/log", seconds=10))
    return answer
