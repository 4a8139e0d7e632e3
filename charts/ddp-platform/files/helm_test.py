"""Program of the pods of `helm test`: pods 0 and 1 run an all-reduce, pod 2 checks that it cannot join them.

Pod 2 connects to the metrics and the rendezvous of pod 0. Pod 1 joins the rendezvous only after that check, so both
ports are open during it, and the all-reduce that follows proves it.
"""

import os
import socket
import sys
import time
import urllib.request
from collections.abc import Sequence

RENDEZVOUS, METRICS = 29400, 9464
EXIT_FAILED = 93
"""Exit code for which the Job's podFailurePolicy fails the Job without a retry."""
RETRY_SECONDS = 0.3
CLOSED_PROBES = 3
"""Number of consecutive failed connections after which the rendezvous counts as closed."""
ENFORCEMENT_SECONDS = 10.0
"""Time limit of the check: a network enforces policies only some time after a pod has started."""


def address_of(index: int) -> str:
    """Return the DNS name of the pod with this completion index."""
    job = os.environ["DDP_JOB"]
    return f"{job}-{index}.{job}"


def is_reachable(index: int, port: int) -> bool:
    """Return whether a pod accepts connections on a port."""
    try:
        socket.create_connection((address_of(index), port), timeout=2).close()
    except OSError:
        return False
    return True


def wait_for(index: int, port: int) -> None:
    """Wait until a pod accepts connections; the Job's deadline is the timeout."""
    while not is_reachable(index, port):
        time.sleep(RETRY_SECONDS)


def check_isolation() -> str:
    """Return an error if the metrics of pod 0 are closed or its rendezvous is open, else an empty text."""
    wait_for(0, METRICS)
    with urllib.request.urlopen(f"http://{address_of(0)}:{METRICS}/metrics", timeout=10) as response:
        metrics = response.read().decode()
    if "ddp_agent_up" not in metrics:
        return f"Port {METRICS} of pod 0 serves no metrics of a launcher: {metrics[:200]!r}."
    closed, end = 0, time.monotonic() + ENFORCEMENT_SECONDS
    while closed < CLOSED_PROBES:
        closed = 0 if is_reachable(0, RENDEZVOUS) else closed + 1
        if time.monotonic() > end:
            return (
                "A pod of another job reached the rendezvous: the network of this cluster does not enforce "
                "NetworkPolicy, or another policy allows this traffic, so every pod can take part in every job. Use a "
                "network that enforces it, or set test.isolation to false."
            )
        time.sleep(RETRY_SECONDS)
    return ""


def hold_open() -> None:
    """Accept connections of pod 1 as long as pod 0 runs."""
    wide = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if wide else socket.AF_INET
    with socket.create_server(("", RENDEZVOUS), family=family, dualstack_ipv6=wide):
        while is_reachable(0, METRICS):
            time.sleep(RETRY_SECONDS)


def main(pods: int, command: Sequence[str]) -> None:
    """Check the isolation in pod 2; replace this process by the launcher in pods 0 and 1."""
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    if index == 2:
        if error := check_isolation():
            print(error, file=sys.stderr, flush=True)
            sys.exit(EXIT_FAILED)
        print("metrics are served, and the rendezvous is closed to pods of other jobs", flush=True)
        hold_open()
        return
    if index == 1 and pods == 3:
        wait_for(2, RENDEZVOUS)
    # Explicit, because the name of a pod resolves only some seconds after its start.
    is_host = "true" if index == 0 else "false"
    os.execvp(command[0], [*command, f"--rdzv-conf=is_host={is_host}"])  # noqa: S606 - replaces this process


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
