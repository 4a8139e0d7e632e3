"""Check of the optional controller, which moves pods before their node goes and resizes elastic jobs by quota.

The controller reviews its own rights and ends with a sentence if one is missing. The check reads that sentence from the
status of its pods, so it needs no right to review the access of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube.objects import Object, holds
from kubectl_ddp.preflight.model import PreflightFacts, Subject, read
from kubectl_ddp.util.finding import Finding, ok, warning
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.program import QueueResize

CONTROLLER_SELECTOR: Final = "app.kubernetes.io/name=ddp-platform,app.kubernetes.io/component=controller"
"""Labels of the controller's pods, as the chart ddp-platform sets them."""
_ONLY: Final = "--only-namespace="
_ERROR: Final = "error: "


def check_controller(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that an installed controller works, and that one is installed for a job that needs it to grow."""
    pods = managing_pods(read(facts.controller), subject.namespace)
    grows = subject.spec.queue_resize is QueueResize.RUNNING
    limits = ["its pods do not move before their node goes"]
    limits += ["its number of nodes does not follow the quota"] if grows else []
    if trouble := controller_trouble(pods):
        yield warning(f"{trouble} Until this is fixed, {' and '.join(limits)}.", fix_of(pods))
    elif pods:
        yield ok("The controller is ready.")
    elif grows:
        yield warning(
            f"No controller manages namespace '{subject.namespace}': the job starts with "
            f"{pluralize(subject.spec.nnodes.minimum, 'node')}, and only 'kubectl ddp scale' changes that.",
            "Install it with the chart ddp-platform, or use --queue-resize start.",
        )


def managing_pods(pods: Sequence[Object], namespace: str) -> list[Object]:
    """Return the pods of controllers that manage the jobs of a namespace."""
    return [pod for pod in pods if not (only := _namespaces(pod)) or namespace in only]


def controller_trouble(pods: Sequence[Object]) -> str:
    """Return a sentence about why the controller does not work; empty if it does, or if it has no pods.

    All its pods have the same rights, so one that lacks some counts, even if others have not noticed yet.
    """
    unready = [pod for pod in pods if not holds(pod, "Ready")]
    lacking = next(filter(None, map(_missing_rights, unready)), "")
    return lacking or ("The controller is not ready." if pods and len(unready) == len(pods) else "")


def fix_of(pods: Sequence[Object]) -> str:
    """Return the fix of the trouble."""
    metadata = pods[0]["metadata"]
    if any(map(_missing_rights, pods)):
        return "Ask a cluster administrator to grant this to its service account, as the chart ddp-platform does."
    return f"'kubectl describe pod {metadata['name']} -n {metadata['namespace']}' shows the reason."


def _namespaces(pod: Object) -> set[str]:
    words = [str(word) for container in pod["spec"].get("containers") or () for word in container.get("args") or ()]
    return {word.removeprefix(_ONLY) for word in words if word.startswith(_ONLY)}


def _missing_rights(pod: Object) -> str:
    """Return the sentence with which the controller has ended because a right is missing; empty if it has not."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ending = state.get("terminated") or {}
            if ending.get("exitCode") == Forbidden.exit_code:
                lines = [line for line in str(ending.get("message", "")).splitlines() if line.startswith(_ERROR)]
                message = (
                    clean_text(lines[-1].removeprefix(_ERROR)) if lines else "A right of the controller is missing."
                )
                return message.partition(". ")[0].rstrip(".") + "."
    return ""
