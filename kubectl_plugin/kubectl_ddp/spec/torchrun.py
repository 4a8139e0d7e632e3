"""Jobs whose ranks the image's own torchrun starts (``launcher: torchrun``): what they refuse, and what they lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_trainer.common.constants import Env
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.pod import Placement

SWITCHES: Final = frozenset(
    {
        Env.PREFLIGHT,
        Env.ON_HANG,
        Env.HANG_FLOOR,
        Env.NUMA_BINDING,
        Env.SURVIVE_ON_NCCL,
        Env.LAST_SCRAPE,
        Env.RESTART_IN_PLACE,
        Env.FORK_SERVER,
        Env.LINT_IGNORE,
        Env.METRICS_HOOKS,
    }
)
"""Variables of the launcher that a job may set. The others belong to the launcher and the platform."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Behavior of both launchers in one situation, for docs/cluster.md and ``render --explain``."""

    subject: str
    ddp: str
    torchrun: str


DIFFERENCES: Final[Sequence[Difference]] = (
    Difference(
        "a rank fails",
        "its process restarts in its pod; surviving workers of an elastic program keep process, model and data",
        "torchrun kills and restarts every worker process of the group",
    ),
    Difference(
        "restart budget",
        "`maxRestarts` counts failures over the whole job",
        "each torchrun counts `maxRestarts` for itself, and the torchrun of a new pod begins at 0",
    ),
    Difference(
        "a pod is lost",
        "the others re-form the group immediately, and its replacement joins",
        "the others restart when their collectives fail; a group below the maximum of nodes waits 30 s for more",
    ),
    Difference(
        "worker 0 is lost",
        "as any other pod: the store has a pod of its own",
        "it held the rendezvous, so every pod of the job is replaced",
    ),
    Difference("spares", "`spares` wait outside of the group, with their imports done", "refused"),
    Difference(
        "first error",
        "the earliest error of any rank, with its traceback and its reason",
        "the rank and exit code in the last output of a pod; its traceback may be in the log alone",
    ),
    Difference(
        "exit code of a failed program",
        "that of the program, or [one that identifies the cause](exit-codes.md)",
        "1",
    ),
    Difference(
        "rank metrics and restarts",
        "in `status`, `top`, `report` and Prometheus",
        "metrics where `runtimeImage` is set, else `-`; restarts are not counted, and `scale` does not wait for ranks",
    ),
    Difference(
        "hangs",
        "detected, with the rank that others wait for; `hang` and `profile` read running ranks",
        "not detected before the timeout of the collectives",
    ),
    Difference(
        "drained nodes",
        "the controller replaces a pod before its node is drained",
        "the controller does not move the pods",
    ),
    Difference(
        "access to the rendezvous",
        "a secret of the run",
        "only the NetworkPolicy of the job; torchrun unpickles what the rendezvous holds",
    ),
    Difference("order of ranks", "by the number at the end of the pod's name", "by the addresses of the pods"),
    Difference(
        "`requirements`, `compileCache`, `torchrunShim`, `topology: [replica=…]`",
        "as described",
        "refused",
    ),
)


def torchrun_has_the_keys(spec: JobSpec) -> None:
    """Check that a job of torchrun has no key that only ``ddp-launch`` implements. Raises UsageError."""
    if spec.uses_torchrun:
        for what, hint in _only_ddp_launch(spec):
            raise UsageError(f"{what}, and the launcher of the job is torchrun.", hint=hint)


def _only_ddp_launch(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield what only ``ddp-launch`` does for the job, and how to do without."""
    if spec.spares:
        yield f"Only ddp-launch keeps spares ({spec.spares})", "Leave spares out, or launcher."
    if spec.torchrun_shim:
        yield "torchrunShim leads a torchrun of the program to ddp-launch", "Leave torchrunShim out, or launcher."
    if spec.requirements is not None:
        yield "Only ddp-launch finds the installed requirements", "Make an image with the packages (--build)."
    if spec.compile_cache is not None:
        yield (
            "Only ddp-launch sets the directories of the compile cache",
            "Mount the volume with --mount, and set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR with --env.",
        )
    if any(wish.placement is Placement.REPLICA for wish in spec.topology):
        yield "Only ddp-launch orders ranks by their pods, as topology 'replica=' needs", "Use pack= instead."


def torchrun_notes(spec: JobSpec) -> Iterator[str]:
    """Yield a note per difference, and one about keys without an effect."""
    if not spec.uses_torchrun:
        return
    for difference in DIFFERENCES:
        yield f"torchrun: {difference.subject}: {difference.torchrun}.".replace("`", "")
    if unused := sorted(SWITCHES & {*spec.env, *spec.secret_env} - {Env.METRICS_HOOKS}):
        yield f"torchrun: without an effect: {', '.join(unused)}."
