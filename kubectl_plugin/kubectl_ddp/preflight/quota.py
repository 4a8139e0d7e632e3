"""Check of the ResourceQuotas of the job's namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.gang import first_pod_count, size_text
from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.preflight.quantities import added, format_quantity, milli_value, milli_values, requests_of, times
from kubectl_ddp.preflight.subject import pods_of
from kubectl_ddp.util.finding import Finding, error, ok, warning

REQUESTS, LIMITS = "requests.", "limits."
PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources whose requests a quota may name without the prefix ``requests.``."""


def check_resource_quota(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that every quota has room for the nodes with which the job starts."""
    worker, store = pods_of(subject)
    count = first_pod_count(subject)
    wanted = added(times(pod_quota_usage(worker), count), pod_quota_usage(store) if store else {})
    pods = size_text(subject, count) + (" with the store" if store else "")
    for quota in read(facts.quotas):
        if applies(quota, subject):
            yield from _left(quota, wanted, pods)


def pod_quota_usage(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the use of quota by a pod, under the resource names of ResourceQuotas."""
    requests = requests_of(pod)
    found = {"pods": 1000, "count/pods": 1000} | {f"{REQUESTS}{name}": amount for name, amount in requests.items()}
    found |= {name: requests[name] for name in PLAIN if name in requests}
    sidecars = [each for each in pod.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in (*sidecars, *pod["containers"]):
        limits = milli_values((container.get("resources") or {}).get("limits"))
        found = added(found, {f"{LIMITS}{name}": amount for name, amount in limits.items()})
    return found


def applies(quota: Object, subject: Subject) -> bool:
    """Return whether a quota applies to the job's pods, which have resource requests and no deadline."""
    spec = quota.get("spec") or {}
    if {"Terminating", "BestEffort", "CrossNamespacePodAffinity"} & set(spec.get("scopes") or ()):
        return False
    expressions = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_selects(each, subject.spec.priority) for each in expressions)


def _selects(expression: Mapping[str, Any], priority: str | None) -> bool:
    if expression["scopeName"] != "PriorityClass":
        return expression["scopeName"] in {"NotTerminating", "NotBestEffort"}
    match expression["operator"]:
        case "In":
            return priority in (expression.get("values") or ())
        case "NotIn":
            return priority not in (expression.get("values") or ())
        case "Exists":
            return priority is not None
    return priority is None


def _left(quota: Object, wanted: Mapping[str, int], pods: str) -> Iterator[Finding]:
    name = quota["metadata"]["name"]
    status = quota.get("status") or {}
    hard, used = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}, status.get("used") or {}
    short = False
    for resource, text in hard.items():
        if not (asked := wanted.get(resource, 0)):  # overuse of another resource does not affect this job
            continue
        most = milli_value(str(text))
        left = most - milli_value(str(used.get(resource, "0")))
        bare = resource.removeprefix(REQUESTS)
        if asked > most:
            short = True
            yield error(
                f"The quota '{name}' allows {format_quantity(resource, most)}, and {pods} "
                f"take {format_quantity(bare, asked)}.",
                "Request less, or a larger quota.",
            )
        elif asked > left:
            short = True
            yield warning(
                f"The quota '{name}' has {format_quantity(resource, max(0, left))} left of "
                f"{format_quantity(bare, most)}, and {pods} "
                f"take {format_quantity(bare, asked)}.",
                "Pods are refused until others of the namespace have ended.",
            )
    if not short:
        yield ok(f"The quota '{name}' is large enough.")
