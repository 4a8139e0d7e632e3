"""Q: paths of the trainer that no other check takes, and collectives between two ranks on NCCL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import PYTHON, TASKS, Nodes, train_single_rank
from bench.gpu_checks.node_failures import SOCKETS
from bench.gpu_checks.tasks import SUMS_FLAGS
from bench.harness import CannotMeasure

RUNS: Final = {
    "--strategy data-parallel": (("--strategy", "data-parallel"), ()),
    "--loader-workers 2": (("--loader-workers", "2", "--prefetch", "2"), ()),
}
"""Name → flags of the trainer and of the launcher."""
ON_A_GPU: Final = {"--numa-binding node": ((), ("--numa-binding", "node"))}
STEPS: Final = 20


def run(bench: Bench) -> None:
    """Run all of them at the same time."""
    runs = RUNS | (ON_A_GPU if bench.is_gpu else {})
    with ThreadPoolExecutor(1 + len(runs)) as pool:
        results = {name: pool.submit(_failure_reason, bench, *flags) for name, flags in runs.items()}
        collectives = pool.submit(_collectives, bench)
        for name, result in results.items():
            if "this machine shows" in result.result():  # no processors near the GPU, as in a virtual machine
                bench.findings.mark_unsupported(name, result.result())
                continue
            bench.findings.require(f"{name} trains to its end {result.result()}".rstrip(), not result.result())
        codes, words = collectives.result()
        bench.findings.require(f"collectives of two ranks are right (exit codes {codes})", codes == [0, 0])
        bench.findings.details["collectives"] = words


def _failure_reason(bench: Bench, flags: tuple[str, ...], launch: tuple[str, ...]) -> str:
    """Reason why a run of one rank failed; empty if it trained to its end."""
    task = ("--task", f"{TASKS}:Sums", *SUMS_FLAGS, "--device", bench.device, "--max-steps", str(STEPS))
    try:
        train_single_rank(*task, *flags, seconds=bench.seconds_left, launch=launch)
    except CannotMeasure as error:
        return f"({str(error)[-150:]})"
    return ""


def _collectives(bench: Bench) -> tuple[list[int | None], str]:
    """Exit codes of both nodes, and the end of what they printed."""
    program = ("--sizes", "4KiB,1MiB", "--repeats", "3", "--warmup", "1")
    command = (PYTHON, "-m", "ddp_collectives")
    variables = SOCKETS if bench.is_gpu else {}
    with Nodes(bench.folder("collectives"), program, least=2, most=2, variables=variables, command=command) as nodes:
        codes = [agent.wait(bench.seconds_left) for agent in nodes.agents.values()]
        return codes, nodes.tail()
