"""Ray Train with an elastic number of workers, on two Ray nodes of this machine."""

from __future__ import annotations

from pathlib import Path

from bench.peers.peer import Command, Job, Peer


def services(job: Job) -> tuple[Command, ...]:
    """Return the head without a worker, and the driver, which waits for it."""
    ray = str(Path(job.python).parent / "ray")
    head = (
        ray,
        "start",
        "--head",
        "--block",
        "--num-cpus=0",
        f"--port={job.ports[0]}",
        "--include-dashboard=false",
        IP,
    )
    fast = FAST if job.fast else {}
    environment = {"RAY_ADDRESS": f"127.0.0.1:{job.ports[0]}", **COMMON, **fast}
    memory = ("--object-store-memory=100000000", f"--temp-dir={_temporary(job)}")
    wait = (
        f"until {ray} health-check --address 127.0.0.1:{job.ports[0]}; do sleep 0.2; done; exec {job.python} {job.loop}"
    )
    return Command((*head, *memory), {**COMMON, **fast}), Command(("sh", "-c", wait), environment)


def node(job: Job, place: int) -> Command:
    """Return a Ray node with one processor."""
    ray = str(Path(job.python).parent / "ray")
    command = (ray, "start", "--block", f"--address=127.0.0.1:{job.ports[0]}", "--num-cpus=1", IP)
    return Command((*command, "--object-store-memory=100000000"), {**COMMON, "BENCH_PLACE": str(place)})


def _temporary(job: Job) -> str:
    return f"/tmp/ray-bench-{job.ports[0]}"  # its sockets need a short path


IP = "--node-ip-address=127.0.0.1"
COMMON = {"RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
FAST = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "3",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "1",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "BENCH_RESIZE_SECONDS": "1",
}
PEER = Peer(
    title="Ray Train",
    node=node,
    services=services,
    loop="ray_loop.py",
    environment="ray",
    beside="head, driver",
    needs_change=True,
    settings="`RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=0.2`, `RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=10`, "
    "`RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S=3`, `TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S=1`, "
    "`RAY_health_check_period_ms=500` (`timeout` 1000, `failure_threshold` 3), `elastic_resize_monitor_interval_s=1`",
    source="https://docs.ray.io/en/latest/train/user-guides/elastic-training.html",
)
