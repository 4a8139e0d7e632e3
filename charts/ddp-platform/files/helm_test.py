"""A pod of `helm test`, by its index: 0 and 1 reduce, and 2, which is none of theirs, must not reach the rendezvous.

Pod 0 opens the rendezvous and its metrics, and waits for pod 1, which waits for pod 2 to have knocked at both. So both
are open while it knocks, and the all-reduce that follows shows that they were.
"""

import os
import socket
import sys
import time
import urllib.request
from collections.abc import Sequence

RENDEZVOUS, METRICS = 29400, 9464
FAILS_AT_ONCE = 93
PAUSE_SECONDS = 0.3
TIMES = 3
"""So often in a row the rendezvous has to be found closed."""
PATIENCE_SECONDS = 10.0
"""How long that may take: policies are enforced a moment after a pod is there."""


def address_of(index: int) -> str:
    """Where the pod of this index is reached."""
    job = os.environ["DDP_JOB"]
    return f"{job}-{index}.{job}"


def opens(index: int, port: int) -> bool:
    """Whether a pod lets us in."""
    try:
        socket.create_connection((address_of(index), port), timeout=2).close()
    except OSError:
        return False
    return True


def wait_for(index: int, port: int) -> None:
    """Until a pod lets us in; the Job has a deadline."""
    while not opens(index, port):
        time.sleep(PAUSE_SECONDS)


def knock() -> str:
    """What is wrong: the metrics have to be open, and the rendezvous closed; empty where they are."""
    wait_for(0, METRICS)
    with urllib.request.urlopen(f"http://{address_of(0)}:{METRICS}/metrics", timeout=10) as answer:
        told = answer.read().decode()
    if "ddp_agent_up" not in told:
        return f"Port {METRICS} of pod 0 serves no metrics of a launcher: {told[:200]!r}."
    found_closed, end = 0, time.monotonic() + PATIENCE_SECONDS
    while found_closed < TIMES:
        found_closed = 0 if opens(0, RENDEZVOUS) else found_closed + 1
        if time.monotonic() > end:
            return (
                "A pod of another job reached the rendezvous: the network of this cluster does not enforce "
                "NetworkPolicy, or another policy lets everybody in, so every pod can take part in every job. Use a "
                "network that enforces it, or set test.isolation to false."
            )
        time.sleep(PAUSE_SECONDS)
    return ""


def stay() -> None:
    """Be there for pod 1, as long as pod 0 is."""
    wide = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if wide else socket.AF_INET
    with socket.create_server(("", RENDEZVOUS), family=family, dualstack_ipv6=wide):
        while opens(0, METRICS):
            time.sleep(PAUSE_SECONDS)


def main(pods: int, command: Sequence[str]) -> None:
    """Become the launcher, or knock where there is a third pod."""
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    if index == 2:
        if wrong := knock():
            print(wrong, file=sys.stderr, flush=True)
            sys.exit(FAILS_AT_ONCE)
        print("metrics are served, and the rendezvous is closed to pods of other jobs", flush=True)
        stay()
        return
    if index == 1 and pods == 3:
        wait_for(2, RENDEZVOUS)
    # Said, and not found out by its name, which a pod may hear of only some seconds after it was started.
    is_host = "true" if index == 0 else "false"
    os.execvp(command[0], [*command, f"--rdzv-conf=is_host={is_host}"])  # noqa: S606 - it takes our place


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
