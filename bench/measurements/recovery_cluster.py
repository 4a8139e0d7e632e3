"""Recovery time of a job on a real cluster after a fault, for our job and a stock elastic PyTorchJob in the same run.

Ours is the reference trainer, as the command line submits it; stock is a plain DDP script under torchrun, which saves
after every step (``elasticPolicy`` with c10d, ``restartPolicy: OnFailure``, restarts allowed). Each fault is done to
the same pods in the same way. With the other engines ours gets the same faults, each in a separate job, so that a
figure contains one back-off of the Job controller. A time goes from the fault to the first step of a worker group that
began after it, by the container runtime's own stamps on the lines that the ranks print.

The parts that end in ``crashes`` run the stock job's script under our launcher, on each engine. There a launcher or a
worker crashes ten times in a row, and no pod may be replaced. The parts with ``cold-script`` run it in small pods: see
:mod:`bench.drivers.cold_script`.

It needs a KUBECONFIG, the variable ``DDP_TEST_IMAGE`` with a trainer image that the nodes can start, the training
operator, and rights over namespaces. Machines are lost only where ``DDP_TEST_NODE_COMMAND`` names a command that takes
them down: see :mod:`bench.drivers.node_access`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.drivers import cluster_runs as runs
from bench.drivers import cold_script, deleted_pods
from bench.drivers.agent_recovery import RecoveryStats
from bench.drivers.cluster_runs import (
    BaselineRun,
    IndexedJobRun,
    IndexedJobScriptRun,
    JobSetRun,
    JobSetScriptRun,
    Run,
    ScriptRun,
    TrainerRun,
    TrainJobRun,
    TrainJobScriptRun,
)
from bench.drivers.node_access import NodeAccess, node_access, node_command, without
from bench.harness import CannotMeasure, Options, Report
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api

SUMMARY = "seconds from a fault on a real cluster to the next step of a re-formed group, beside a stock elastic job"

GIVEN_UP: Final = 150.0
"""Seconds after which a run counts as not recovered."""
SETTLED_SECONDS: Final = 8.0
"""Training time before the next fault, in which agents start their fork servers."""
STORE_AWAY_SECONDS: Final = 12.0
"""Duration of the watch after the loss of the store's machine."""

BARS: Final[Mapping[str, float]] = {
    "first_step_after_pods_run": 6.0,
    "worker_process_killed": 2.0,
    "container_of_worker_1_killed": 4.0,
    "container_of_worker_0_killed": 4.0,
    "pod_of_worker_1_deleted": 2.0,
    "pod_of_worker_1_deleted_until_whole": 10.0,
    "pod_of_worker_0_deleted": 2.0,
    "pod_of_worker_0_deleted_until_whole": 10.0,
    "scaled_up_after_pod_runs": 6.0,
    "node_killed": 1.0,
    "node_cut": 5.0,
    "store_and_worker_lost": 30.0,
    "pause_while_store_is_lost": 1.0,
    **deleted_pods.OPERATOR_BARS,
    **deleted_pods.spare_limits(["", "indexed_job_", "jobset_", "trainjob_"]),
}
"""Fault → upper limit of its median, in seconds. Other figures have no limit."""


@dataclass(slots=True)
class ClusterBench:
    """Settings and results that all parts share."""

    api: Api
    backend: ClusterBackend
    access: NodeAccess
    image: str
    options: Options
    own: RecoveryStats = field(default_factory=RecoveryStats)
    stock: RecoveryStats = field(default_factory=RecoveryStats)

    @property
    def round_count(self) -> int:
        """Rounds of each fault for our job. Stock has one, which takes minutes."""
        return 1 if self.options.quick else 3

    @contextmanager
    def job(
        self,
        kind: type[Run],
        name: str,
        least: int,
        most: int,
        *,
        apart: bool = False,
        counts_start: bool = True,
        spares: int = 0,
    ) -> Iterator[Run]:
        """Yield a job that trains with ``most`` nodes; with ``counts_start`` the time of its start is recorded."""
        run = kind(self.backend, self.api, self.image, name, spares=spares)
        begun = time.time()
        run.submit(least, most, apart=apart)
        stepped = run.first(begun, GIVEN_UP, world=most)
        if stepped is None:
            raise CannotMeasure(f"The job {name} did not begin to train.")
        if counts_start:
            outcomes = self.of(run)
            outcomes.since("first_step_after_submit", begun, stepped)
            outcomes.since("first_step_after_pods_run", run.latest_container_start(), stepped)
        yield run

    def of(self, run: Run) -> RecoveryStats:
        """Return the statistics of a run."""
        return self.own if isinstance(run, TrainerRun) else self.stock

    def fault(self, run: Run, name: str, world: int, do: Callable[[NodeAccess, Run], float]) -> None:
        """Do it to a settled job, and take down when any group steps, and when the whole world does."""
        run.train(world, GIVEN_UP, lasting=SETTLED_SECONDS if isinstance(run, TrainerRun) else 1.0)
        begun = do(self.access, run)
        outcomes = self.of(run)
        outcomes.since(name, begun, run.first(begun, GIVEN_UP))
        outcomes.since(f"{name}_until_whole", begun, run.first(begun, GIVEN_UP, world=world))
        self.options.progress(
            f"{type(run).__name__}: {name} {outcomes.tries[name][-1]} s, whole {_last(outcomes, name)} s"
        )


def _last(outcomes: RecoveryStats, name: str) -> float | None:
    return outcomes.tries[f"{name}_until_whole"][-1]


# ------------------------------------------------------------------------------------------------------------ processes


FAULTS: Final[Mapping[str, Callable[[NodeAccess, Run], float]]] = {
    "worker_process_killed": lambda access, run: access.kill(run.pods()[1], run.worker(run.pods()[1])),
    "container_of_worker_1_killed": lambda access, run: access.kill(run.pods()[1]),
    "container_of_worker_0_killed": lambda access, run: access.kill(run.pods()[0]),
    "pod_of_worker_1_deleted": lambda _, run: run.delete_pod(run.pods()[1]),
    "pod_of_worker_0_deleted": lambda _, run: run.delete_pod(run.pods()[0]),
}


def measure_process_failures(bench: ClusterBench, kind: type[Run]) -> None:
    """A worker is killed, then the main process of each pod, then each pod is deleted."""
    with bench.job(kind, "processes", 1, 2) as run:
        for _ in range(bench.round_count):
            for name, fault in FAULTS.items():
                bench.fault(run, name, 2, fault)


def single_fault_part(name: str, prefix: str = "") -> Callable[[ClusterBench, type[Run]], None]:
    """Return a part that causes one fault in a separate job.

    Stock may not recover from a fault. A Job doubles its back-off with each pod that fails.
    """

    def part(bench: ClusterBench, kind: type[Run]) -> None:
        with bench.job(kind, f"{prefix}{name}".replace("_", "-"), 1, 2, counts_start=not prefix) as run:
            bench.fault(run, f"{prefix}{name}", 2, FAULTS[name])

    return part


def measure_scaling(bench: ClusterBench, kind: type[Run]) -> None:
    """Scale from two nodes to three, and back."""
    with bench.job(kind, f"{kind.__name__.lower()}-scaled", 1, 3) as run:
        for _ in range(bench.round_count if kind is TrainerRun else 1):
            run.scale(2)
            run.train(2, GIVEN_UP, lasting=SETTLED_SECONDS)
            begun = time.time()
            run.scale(3)
            stepped = run.first(begun, GIVEN_UP, world=3)
            outcomes = bench.of(run)
            outcomes.since("scaled_up", begun, stepped)
            outcomes.since("scaled_up_after_pod_runs", run.latest_container_start(), stepped)
            bench.options.progress(f"{kind.__name__}: {outcomes}")


# ------------------------------------------------------------------------------------------------------------- machines


def measure_node_failures(bench: ClusterBench, kind: type[Run]) -> None:
    """The machine of worker-1 dies, and comes back; of ours also one is cut off, and the store's is lost."""
    with bench.job(kind, f"{kind.__name__.lower()}-machines", 1, 2, apart=True) as run:
        for by in ("kill", "cut") if kind is TrainerRun else ("kill",):
            run.train(2, GIVEN_UP, lasting=SETTLED_SECONDS)
            first, second = (pod["spec"]["nodeName"] for pod in run.pods())
            if first == second:
                raise CannotMeasure("Both workers are on one machine.")
            victim = _without_store(run, first, second) if isinstance(run, TrainerRun) else second
            _measure_node_loss(bench, run, victim, by, {"kill": "node_killed", "cut": "node_cut"}[by])


def _without_store(run: TrainerRun, first: str, second: str) -> str:
    return first if run.store()["spec"]["nodeName"] == second else second


def _measure_node_loss(bench: ClusterBench, run: Run, victim: str, by: str, name: str) -> None:
    with without(bench.api, victim, by=by) as lost:
        run.lost = {victim}
        limit = GIVEN_UP if isinstance(run, TrainerRun) else 60.0
        bench.of(run).since(name, lost, run.first(lost, limit))
    run.lost = set()
    bench.of(run).since(f"{name}_until_whole", lost, run.first(lost, GIVEN_UP, world=2))
    bench.options.progress(f"{type(run).__name__}: {bench.of(run)}")


def measure_store_loss(bench: ClusterBench, kind: type[Run]) -> None:
    """The machine of the store is lost, first alone, then with a worker on it. Stock has its store in worker-0."""
    if kind is BaselineRun:
        with bench.job(kind, "stock-stores", 1, 2, apart=True) as run:
            run.train(2, GIVEN_UP)
            _measure_node_loss(bench, run, run.pods()[0]["spec"]["nodeName"], "kill", "store_and_worker_lost")
        return
    with bench.job(kind, "ours-alone", 1, 1) as run:
        assert isinstance(run, TrainerRun)
        run.train(1, GIVEN_UP, lasting=SETTLED_SECONDS)
        if run.store()["spec"]["nodeName"] == run.pods()[0]["spec"]["nodeName"]:
            raise CannotMeasure("The store and the worker are on one machine.")
        with without(bench.api, run.store()["spec"]["nodeName"], by="kill") as lost:
            time.sleep(STORE_AWAY_SECONDS)
            bench.own.add("pause_while_store_is_lost", run.longest_pause(lost, lost + STORE_AWAY_SECONDS))
        run.delete()
    with bench.job(kind, "ours-stores", 1, 2, apart=True) as run:
        assert isinstance(run, TrainerRun)
        run.train(2, GIVEN_UP, lasting=SETTLED_SECONDS)
        _measure_node_loss(bench, run, run.store()["spec"]["nodeName"], "kill", "store_and_worker_lost")


# ------------------------------------------------------------------------------------------------------------- in place

CRASHES: Final = 10
"""Crashes of one launcher, and then of one worker, in a row."""
CRASH_LIMIT_SECONDS: Final = 4.0
"""Upper limit of each time until the group is whole again."""
CRASH_MEDIAN_SECONDS: Final = 3.0
"""Upper limit of their median."""
IN_PLACE: Final[Mapping[str, Callable[[NodeAccess, Run], float]]] = {
    "launcher_crashed": lambda access, run: (
        access.kill_launcher(run.pods()[1]) if isinstance(run, ScriptRun) else access.kill(run.pods()[1])
    ),
    "worker_crashed": lambda access, run: access.kill(run.pods()[1], run.worker(run.pods()[1])),
}
"""Fault in a plain script → how it is done. The launcher of the stock job is the main process of its pod."""


def crash_part(prefix: str) -> Callable[[ClusterBench, type[Run]], None]:
    """Return a part in which the launcher of one pod crashes again and again, then its worker."""

    def part(bench: ClusterBench, kind: type[Run]) -> None:
        with bench.job(kind, f"{prefix}crashes".replace("_", "-"), 2, 2, counts_start=False) as run:
            outcomes, before = bench.of(run), {pod["metadata"]["uid"] for pod in run.pods()}
            is_short = bench.options.quick or kind is BaselineRun
            for name, fault in IN_PLACE.items():
                for _ in range(2 if is_short else CRASHES):
                    run.train(2, GIVEN_UP, lasting=SETTLED_SECONDS)
                    begun = fault(bench.access, run)
                    outcomes.since(f"{prefix}{name}", begun, run.first(begun, GIVEN_UP, world=2))
                bench.options.progress(f"{kind.__name__}: {name} {outcomes.tries[f'{prefix}{name}']}")
            replaced = before - {pod["metadata"]["uid"] for pod in run.pods()}
            outcomes.add(f"{prefix}pods_replaced", float(len(replaced)))

    return part


ENGINES: Final[Mapping[str, type[Run]]] = {"indexed_job": IndexedJobRun, "jobset": JobSetRun, "trainjob": TrainJobRun}
"""Engines besides the PyTorchJob, whose figures have no prefix."""

SCRIPTS: Final[Mapping[str, type[Run]]] = {
    "pytorchjob": ScriptRun,
    "indexed_job": IndexedJobScriptRun,
    "jobset": JobSetScriptRun,
    "trainjob": TrainJobScriptRun,
}
"""Engine → run of a plain script on it."""

PARTS: Final[Mapping[str, tuple[type[Run], Callable[[ClusterBench, type[Run]], None]]]] = {
    "ours-processes": (TrainerRun, measure_process_failures),
    **{f"stock-{name.replace('_', '-')}": (BaselineRun, single_fault_part(name)) for name in FAULTS},
    **{
        f"{engine}-{name}".replace("_", "-"): (kind, single_fault_part(name, f"{engine}_"))
        for engine, kind in ENGINES.items()
        for name in FAULTS
    },
    **{
        f"{engine}-{name}".replace("_", "-"): (kind, part(prefix))
        for engine, kind, prefix in (("ours", TrainerRun, ""), *((name, ENGINES[name], f"{name}_") for name in ENGINES))
        for name, part in (("with-spare", deleted_pods.with_spare), ("deleted-in-a-row", deleted_pods.in_a_row))
    },
    **{
        f"{engine}-crashes".replace("_", "-"): (kind, crash_part(f"script_{engine}_"))
        for engine, kind in SCRIPTS.items()
    },
    "stock-crashes": (BaselineRun, crash_part("script_")),
    **{
        f"{whose}-cold-script-{name}": (kind, part)
        for whose, kind in (("ours", cold_script.ColdScriptRun), ("stock", cold_script.ColdBaselineRun))
        for name, part in (("faults", cold_script.measure_recovery), ("scaled-up", cold_script.scaled_up))
    },
    "ours-cold-script-with-spare": (cold_script.ColdScriptRun, cold_script.with_spare),
    "ours-scaled": (TrainerRun, measure_scaling),
    "stock-scaled": (BaselineRun, measure_scaling),
    "ours-machines": (TrainerRun, measure_node_failures),
    "stock-machines": (BaselineRun, measure_node_failures),
    "ours-stores": (TrainerRun, measure_store_loss),
    "stock-stores": (BaselineRun, measure_store_loss),
}
NEED_MACHINES: Final = frozenset({measure_node_failures, measure_store_loss})


def measure(options: Options) -> Report:
    """Run every part, or the selected ones, on both."""
    wanted = {name: PARTS[name] for name in options.parts(tuple(PARTS))}
    image = runs.image()
    api = runs.connected_api()
    report = Report()
    with node_access(api, image) as access:
        bench = ClusterBench(api, ClusterBackend(), access, image, options)
        for name, (kind, part) in wanted.items():
            if part in NEED_MACHINES and node_command() is None:
                options.progress(f"{name}: left out, since no command takes machines down here")
                continue
            with runs.namespace(api) as space:
                bench.backend = ClusterBackend(Access(namespace=space))
                part(bench, kind)
    report_results(report, bench.own, bench.stock)
    return report


def report_results(report: Report, own: RecoveryStats, stock: RecoveryStats) -> None:
    """Figures of ours with their bars, and baselines."""
    for name, tries in own.tries.items():
        seconds = own.seconds(name)
        if name.endswith("pods_replaced"):
            report.at_most(name.replace("_", " "), sum(seconds), 0)
            continue
        report.figure(f"{name}_recovered_ratio", len(seconds) / len(tries))
        if name in BARS or name.startswith((*ENGINES, "script")):
            report.at_least(f"share of {len(tries)}, {name.replace('_', ' ')}", len(seconds) / len(tries), 1.0)
        if seconds:
            summary = report.figure(f"{name}_seconds", seconds)
            if name in BARS:
                report.at_most(f"median seconds, {name.replace('_', ' ')}", summary.median, BARS[name])
            if name.endswith("crashed"):
                report.at_most(f"median seconds, {name.replace('_', ' ')}", summary.median, CRASH_MEDIAN_SECONDS)
                report.at_most(f"longest seconds, {name.replace('_', ' ')}", max(seconds), CRASH_LIMIT_SECONDS)
    cold_script.compare_recovery_times(report, own)
    for name, tries in stock.tries.items():
        report.baseline(f"stock_{name}_recovered_ratio", len(stock.seconds(name)) / len(tries))
        if stock.seconds(name):
            report.baseline(f"stock_{name}_seconds", stock.seconds(name))
