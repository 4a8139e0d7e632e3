"""Checks of removed pods: evicted, drained or deleted, and a killed rendezvous store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ddp_trainer.common.constants import Path as ContractPath
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.event_owner import event_timestamp
from kubectl_ddp.kube.objects import Object, RelatedKind, main_status
from kubectl_ddp.kube.timestamps import epoch
from kubectl_ddp.status.termination_message import STORE_NAME, stores, workers
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import duration
from kubectl_ddp.why.facts import RECENT_SECONDS, Facts, format_event, line_of, message_of, names_of, subject
from kubectl_ddp.why.failing import disruption, disruption_reason, pods_of_events
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

_EVICTED: Final = frozenset({"EvictionByEvictionAPI", "TerminationByKubelet", "Evicted"})
_BY_CONTROLLER: Final = re.compile(r"Suspended$|^SuccessfulDelete")
"""Pattern of event reasons of controllers that remove pods intentionally: suspension, fewer nodes, failed pods."""
_OTHERWISE: Final = ("Preempted", "TaintManagerEviction", "Evicted", "NodeNotReady")
"""Event reasons with which another check explains the removal of a pod."""
_FULL_VOLUME: Final = re.compile(r'[Vv]olume "([^"]+)" exceeds')
_SOON_SECONDS: Final = 5.0


def pod_eviction(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the kubelet or the eviction API evicted a pod."""
    evicted = [pod for pod in facts.snapshot.pods if disruption_reason(pod) in _EVICTED]
    events = facts.events("Evicted")
    drained = [event for event in _killed(facts) if _is_cordoned(facts, event)]
    if not (evicted or events or drained):
        return
    pods = evicted or pods_of_events([*events, *drained])
    why = line_of(
        message_of(events[-1]) if events else _reason(evicted[0]) if evicted else _cordon_message(drained[-1])
    )
    by_api = bool(drained) or any(disruption_reason(pod) == "EvictionByEvictionAPI" for pod in evicted)
    yield diagnosis(
        Cause.EVICTED,
        f"{subject(names_of(pods))} {_was(pods)} evicted: {why.rstrip('.')}.",
        "Its node is drained, or the pod was evicted; it is recreated elsewhere, if there is room."
        if by_api
        else _help_of_eviction(facts, why),
        [*map(disruption, evicted[:2]), *map(format_event, (events or drained)[-2:])],
        is_aside=_is_replaced(facts, evicted, [*events, *drained]) or (facts.is_over and not evicted),
    )


def _help_of_eviction(facts: Facts, why: str) -> str:
    """Return what helps a pod that the kubelet evicted, with the path of a volume that was full."""
    if volume := _FULL_VOLUME.search(why):
        mounts = [mount for pod in workers(facts.snapshot.pods) for mount in _mounts(pod) if mount["name"] == volume[1]]
        path = str(mounts[0]["mountPath"]) if mounts else ""
        if path == ContractPath.SHARED_MEMORY:
            return "Shared memory (/dev/shm) of the pod is full: submit it again with more --shm."
        return f"Write less to {path or 'the volume'}, or mount a larger volume there (--mount)."
    if "ephemeral" in why:
        return "Write less to /tmp and to the container's own files, or mount a volume for them (--mount)."
    return "Request what the message names: more memory, or a larger volume in the job file."


def _mounts(pod: Object) -> list[Object]:
    return [mount for container in pod["spec"]["containers"] for mount in container.get("volumeMounts") or ()]


def deleted(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a pod of the job was deleted by a user or program."""
    if facts.is_over or job_kinds.is_suspend_requested(facts.job) or "deletionTimestamp" in facts.job["metadata"]:
        return
    leaving = (
        [] if _has_desired_pods(facts) else [pod for pod in _terminating_pods(facts) if not disruption_reason(pod)]
    )
    events = [event for event in _killed(facts) if not _is_cordoned(facts, event)]
    if not (leaving or events):
        return
    pods = leaving or pods_of_events(events)
    evidence = [f"pod {pod['metadata']['name']} ends since {pod['metadata']['deletionTimestamp']}" for pod in leaving]
    yield diagnosis(
        Cause.POD_DELETED,
        f"{subject(names_of(pods))} {_was(pods)} deleted.",
        "The operator recreates it, and the ranks continue; "
        f"'{program()} events {facts.name}{location_flags()}' shows "
        "what happened. Kubernetes records in its audit log alone who deleted or evicted it.",
        (*evidence[:2], *(format_event(event) for event in events[-2:])),
        is_aside=_is_replaced(facts, leaving, events),
    )


def store_killed(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the rendezvous store was killed during training; the ranks continue without it."""
    if not (facts.is_training and facts.is_on_cluster):
        return
    pods = stores(facts.pods)
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    moments = [moment for pod in pods for moment in _restart_times(pod)]
    events = [event for event in _gone(facts) if STORE_NAME.search(str(event["involvedObject"]["name"]))]
    moments += [moment for event in events if (moment := event_timestamp(event)) is not None]
    last = max(moments, default=0.0)
    if (running and facts.now - last > RECENT_SECONDS) or not (pods or last):
        return
    ago = f" {duration(max(0.0, facts.now - last))} ago" if last else ""
    yield diagnosis(
        Cause.STORE,
        f"The rendezvous store was killed{ago} and runs again; the ranks kept training."
        if running
        else "The rendezvous store does not run; the ranks keep training, and no lost rank can be replaced.",
        f"Nothing to do once it runs: 'kubectl get pod -l ddp.dev/job={facts.name},ddp.dev/role=store' shows it.",
        map(format_event, events[-2:]),
        exit_code=0,
    )


def _killed(facts: Facts) -> list[Object]:
    """Return the kubelet's events about requested stops of worker pods that are gone."""
    excused = {event["involvedObject"].get("uid") for event in facts.events(*_OTHERWISE)}
    on_purpose = [
        moment
        for event in facts.job_events()
        if _BY_CONTROLLER.search(str(event.get("reason"))) and (moment := event_timestamp(event)) is not None
    ]
    return [
        event
        for event in _gone(facts)
        if not STORE_NAME.search(str(event["involvedObject"]["name"]))
        and event["involvedObject"].get("uid") not in excused
        and not any(abs((event_timestamp(event) or 0.0) - moment) < _SOON_SECONDS for moment in on_purpose)
    ]


def _gone(facts: Facts) -> list[Object]:
    """Return the kubelet's recent events about stopped containers of pods that are gone."""
    here = {pod["metadata"].get("uid") for pod in facts.snapshot.pods}
    return [
        event
        for event in facts.events("Killing")
        if event["involvedObject"].get("uid") not in here
        and facts.now - (event_timestamp(event) or 0.0) < RECENT_SECONDS
    ]


def _terminating_pods(facts: Facts) -> list[Object]:
    return [pod for pod in workers(facts.snapshot.pods) if "deletionTimestamp" in pod["metadata"]]


def _has_desired_pods(facts: Facts) -> bool:
    """Return True if the job has all requested pods, without those being deleted."""
    return len(facts.workers) >= facts.state.nodes.desired


def _is_replaced(facts: Facts, leaving: Sequence[Object], events: Sequence[Object]) -> bool:
    """Return True if enough other pods run, and ranks have made progress since."""
    if not leaving:
        return facts.has_recovered_from(events[-1] if events else None)
    running = [pod for pod in facts.workers if (pod.get("status") or {}).get("phase") == "Running"]
    since = max(epoch(pod["metadata"].get("deletionTimestamp")) or 0.0 for pod in leaving)
    return len(running) >= facts.state.nodes.minimum and facts.has_run_since(since)


def _is_cordoned(facts: Facts, event: Object) -> bool:
    return _node(event) in {
        node["metadata"]["name"] for node in facts.around.of(RelatedKind.NODES) if node["spec"].get("unschedulable")
    }


def _node(event: Object) -> str:
    source: dict[str, Any] = event.get("source") or {}
    return str(source.get("host") or event.get("reportingInstance") or "")


def _cordon_message(event: Object) -> str:
    return f"its node {_node(event)} is cordoned"


def _restart_times(pod: Object) -> Iterator[float]:
    """Yield the time at which the job's container ended that runs again."""
    ended = epoch(((main_status(pod).get("lastState") or {}).get("terminated") or {}).get("finishedAt"))
    if ended is not None:
        yield ended


def _reason(pod: Object) -> str:
    status: dict[str, Any] = pod.get("status") or {}
    conditions = status.get("conditions") or ()
    messages = [
        str(condition.get("message") or "") for condition in conditions if condition.get("type") == "DisruptionTarget"
    ]
    return str(status.get("message") or "".join(messages[:1]))


def _was(pods: Sequence[Object]) -> str:
    return "was" if len(pods) == 1 else "were"
