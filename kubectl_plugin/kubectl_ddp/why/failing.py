"""Checks of pods that ran and ended: lost nodes, preemption, eviction, drain, memory, the first error of any rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ddp_trainer.common.constants import Exit, FailureReason
from ddp_trainer.common.constants import Path as ContractPath
from ddp_trainer.common.gpu_faults import cause_line, fault_in
from kubectl_ddp.errors import InfrastructureFailed, JobFailed
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, RelatedKind, condition_of, epoch, main_container, main_status
from kubectl_ddp.status.job_state import State
from kubectl_ddp.status.termination_message import (
    STORE_NAME,
    FirstError,
    crash_message,
    describe_exit_code,
    error_of,
    load_first_error,
    stores,
    workers,
)
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import duration
from kubectl_ddp.why.facts import (
    RECENT_SECONDS,
    Facts,
    event_timestamp,
    format_event,
    line_of,
    message_of,
    names_of,
    subject,
)
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

_LOST: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC", "NodeLost"})
_ENDED: Final = re.compile(r"Error pod (\S+) container \S+ exitCode: (\d+) terminated message: (.*)", re.DOTALL)
"""Pattern of the event in which Kubeflow's operator reports a failed pod; it deletes the pod immediately."""
_FIXES: Final = (
    (
        re.compile(r"shared memory|/dev/shm\S* is full|SIGBUS|Bus error"),
        "Shared memory (/dev/shm) of the pod is full: submit it again with more --shm, or fewer data-loader workers.",
    ),
    (
        re.compile("which the script starts, failed"),
        "The job has started the ranks already: submit the program behind the launcher, or give it --standalone.",
    ),
    (
        re.compile(r"\(/checkpoints\S* is full"),
        "The checkpoint volume is full: enlarge its claim, or keep fewer checkpoints (--keep of the trainer).",
    ),
    (
        re.compile(r"No space left on device|Errno 28|Disk quota exceeded|failed writing file"),
        "A volume of the pod is full: write less to /tmp and /dev/shm (--shm), or mount a larger volume (--mount).",
    ),
    (
        re.compile(r"(?i)Read-only file system|Errno 30\b"),
        "The image is read-only: write to /checkpoints (--checkpoint-claim), a --mount, or /tmp, lost with the pod.",
    ),
    (re.compile(r"exec format error"), "Build the image for the nodes' architecture."),
    (
        re.compile(r"No module named '?ddp_trainer\b"),
        "The image does not hold the launcher: mount it with --runtime-image, or name another --image.",
    ),
    (
        re.compile(r"No module named '?torch\b"),
        "The image has no torch for this interpreter: name another --image, or another interpreter with --python.",
    ),
)
"""Pattern of an error's message → its fix. The first match counts."""
_FAILED: Final = re.compile(r"\bddp-launch: failed: (.+)")
_EVICTED: Final = frozenset({"EvictionByEvictionAPI", "TerminationByKubelet", "Evicted"})


def node_lost(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a node of the pods is lost or does not respond."""
    if facts.is_over and facts.state.state is not State.FAILED:
        return
    dead = {
        node["metadata"]["name"]: condition_of(node, "Ready")
        for node in facts.around.of(RelatedKind.NODES)
        if condition_of(node, "Ready").get("status") != "True"
    }
    on_dead = [pod for pod in facts.snapshot.pods if pod["spec"].get("nodeName") in dead]
    disrupted = [pod for pod in facts.snapshot.pods if disruption_reason(pod) in _LOST]
    events = facts.events("NodeNotReady", "TaintManagerEviction")
    missing = [event for event in events if _has_no_replacement(facts, event)]
    if not (on_dead or disrupted or missing):
        return
    pods = on_dead or disrupted
    node = next((str(pod["spec"].get("nodeName")) for pod in pods), "")
    what = f"The node {node} under {names_of(pods)}" if node else f"A node under {names_of(pods_of_events(missing))}"
    evidence = [f"node {name}: {line_of(dead[name].get('message'))}" for name in dead if name == node]
    evidence += [disruption(pod) for pod in disrupted[:2]] + [format_event(event) for event in events[-2:]]
    yield diagnosis(
        Cause.NODE_LOST,
        f"{what} is lost.",
        f"Its pods are recreated elsewhere; if one stays in Terminating and the machine is off, "
        f"'kubectl delete pod {pods[0]['metadata']['name']} --force' removes it."
        if pods
        else "Its pods are recreated elsewhere, if there is room.",
        evidence,
        is_aside=facts.has_recovered_from(events[-1] if events else None),
    )


def pod_preemption(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the scheduler preempted a pod for one of higher priority."""
    disrupted = [pod for pod in facts.snapshot.pods if disruption_reason(pod) == "PreemptionByScheduler"]
    events = facts.events("Preempted")
    missing = [event for event in events if _has_no_replacement(facts, event)]
    if disrupted or events:
        pods = disrupted or pods_of_events(events)
        yield diagnosis(
            Cause.PREEMPTED,
            f"{subject(names_of(pods))} had to make room for a pod of higher priority.",
            "It resumes by itself when there is room; a higher --priority is not preempted by that pod.",
            [*map(disruption, disrupted[:2]), *map(format_event, events[-2:])],
            is_aside=facts.is_over
            or facts.has_recovered_from(events[-1] if events else None)
            or not (disrupted or missing),
        )


def host_oom(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a container or a worker exceeded its memory."""
    killed = [
        item
        for item in facts.containers()
        if item.holds_job and any(end.get("reason") == "OOMKilled" for end in item.endings)
    ]
    error, event = first_error_of(facts)
    is_reported = error is not None and (
        error.reason == FailureReason.HOST_OOM or (event is not None and event.get("reason") == "OOMKilled")
    )
    if not killed and not is_reported:
        return
    limits = [_limit(item.pod, item.status["name"]) for item in killed] or [
        _limit(pod, main_container(pod)) for pod in facts.workers
    ]
    limit = next((text for text in limits if text), "")
    who = names_of([item.pod for item in killed]) if killed else error.location if error else ""
    evidence = [f"{item.pod_name}: container {item.status['name']} ended with OOMKilled" for item in killed[:3]]
    evidence += [f"{error.pod}: {line_of(error.message)}"] if error is not None and is_reported else []
    yield diagnosis(
        Cause.HOST_OOM,
        f"The kernel killed {who} for memory{f', of which a node has {limit}' if limit else ''}.",
        "Submit it again with more --memory, or load less: data-loader workers and /dev/shm (--shm) count too.",
        evidence,
        is_aside=_is_over_it(facts, event),
    )


def gpu_oom(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a GPU ran out of memory."""
    error = facts.state.first_error
    if error is not None and error.reason == FailureReason.GPU_OOM:
        yield diagnosis(
            Cause.GPU_OOM,
            f"{error.subject} ran out of GPU memory.",
            "Use a smaller batch per GPU, accumulate gradients, or more GPUs; it will not help to try again.",
            (line_of(error.message), *_last_call(error)),
            is_aside=_is_over_it(facts),
        )


def gpu_fault(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a GPU failed or is missing."""
    error, event = first_error_of(facts)
    if error is None or error.reason != FailureReason.GPU_FAULT:
        return
    node = error.host or str(((facts.pod(error.pod) or {}).get("spec") or {}).get("nodeName") or "")
    fault = fault_in(error.message)
    fix = f"{fault.fix[0].upper()}{fault.fix[1:]}." if fault else "Look for 'Xid' in the kernel log of the node."
    # Messages of the launcher and the trainer end with the fix, which is reported as help here.
    words = line_of(cause_line(error.message.partition(" Fix: ")[0])).rstrip(".")
    where = f" on node {node}" if node and node not in words else ""
    yield diagnosis(
        Cause.GPU_FAULT,
        f"{error.subject} could not use its GPU{where}: {words}.",
        f"{fix} 'kubectl cordon {node}' keeps pods off the node." if node else fix,
        [_exit_text(error), *_last_call(error)],
        is_aside=_is_over_it(facts, event),
    )


def first_error(facts: Facts) -> Iterator[CauseFinding]:
    """Report the error of the rank that failed first, or what is known about the failure."""
    error, event = first_error_of(facts)
    if error is None:
        yield from _unknown_failure(facts)
        return
    is_oom = event is not None and event.get("reason") == "OOMKilled"
    if is_oom or error.reason in {
        FailureReason.GPU_OOM,
        FailureReason.HOST_OOM,
        FailureReason.GPU_FAULT,
    }:
        return
    source = "kept in the job's annotation, since its pod is gone" if load_first_error(facts.job) == error else ""
    what = "" if error.reason == FailureReason.EARLY_EXIT else "failed first: "
    stack = f"'{program()} logs {facts.name} --first-error{location_flags()}' prints its stack."
    yield diagnosis(
        Cause.HANG if error.reason == FailureReason.HANG else Cause.ERROR,
        f"{error.subject} {what}{line_of(error.message).rstrip('.')}.",
        next((fix for pattern, fix in _FIXES if pattern.search(error.message)), stack),
        [_exit_text(error), *_last_call(error), source],
        is_aside=_is_over_it(facts, event),
        exit_code=JobFailed.exit_code if error.is_users else InfrastructureFailed.exit_code,
    )


def early_failures(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a running job fails again and again before its first step."""
    found = facts.state.early_failures
    if found is None or facts.now - found.last > RECENT_SECONDS:
        return
    messages = [match[1] for line in facts.lines.get(found.pod, ()) if (match := _FAILED.search(line))]
    error = messages[-1] if messages else f"rank {found.rank} on {found.pod} failed with {found.reason}."
    limit = job_kinds.max_restarts(facts.job)
    of = f" of {limit}" if limit is not None else ""
    same = sum(line == error for line in messages)
    yield diagnosis(
        Cause.ERROR,
        f"It restarts again and again and has made no step ({found.count}{of} restarts used): {line_of(error)}",
        f"'{program()} logs {facts.name} --rank {found.rank}{location_flags()}' prints its stack; an error that comes "
        "three times in the same words ends the run.",
        [f"the last {same} failures of {found.pod} have these words" if same > 1 else ""],
        exit_code=JobFailed.exit_code,
    )


def _unknown_failure(facts: Facts) -> Iterator[CauseFinding]:
    """Check for a failed job, or a container that fails repeatedly, without an error report of a rank."""
    failed = job_kinds.conditions(facts.job).get("Failed")
    crashed = [(pod, how) for pod in facts.pods if (how := crash_message(pod))]
    if failed is None and not crashed:
        return
    text = line_of(f"{(failed or {}).get('reason', '')}: {(failed or {}).get('message', '')}") if failed else ""
    who = f"Pod {crashed[0][0]['metadata']['name']}: {line_of(crashed[0][1]).rstrip('.')}" if crashed else ""
    yield diagnosis(
        Cause.ERROR,
        f"{who or 'It failed, and no pod is left that says why'}.",
        f"'{program()} logs {facts.name} --rank all{location_flags()}' prints what is left of its pods' lines.",
        [f"condition Failed: {text}" if text else ""],
        exit_code=JobFailed.exit_code if crashed else InfrastructureFailed.exit_code,
        is_aside=facts.is_training,
    )


def first_error_of(facts: Facts) -> tuple[FirstError | None, Object | None]:
    """Return the first error of the job, and the event that reports it if the operator has deleted the pod."""
    if facts.state.first_error is not None:
        return facts.state.first_error, None
    for event in reversed(facts.job_events()):
        match = _ENDED.match(message_of(event))
        if match and facts.state.state is not State.SUCCEEDED and match[2] != str(int(Exit.TERMINATED)):
            return error_of(match[1], int(match[2]), match[3]), event
    return None, None


def _is_over_it(facts: Facts, event: Object | None = None) -> bool:
    """Return True if the job has recovered since."""
    if event is not None:
        return facts.has_recovered_from(event)
    return facts.is_training or facts.state.state is State.SUCCEEDED


def _exit_text(error: FirstError) -> str:
    code = error.exit_code
    return f"its worker {describe_exit_code(code)}" if code is not None else ""


def _last_call(error: FirstError) -> list[str]:
    """Return the line of the stack closest to the error."""
    calls = [line.strip() for line in error.stack.splitlines() if line.strip().startswith("File ")]
    return [calls[-1]] if calls else []


def disruption_reason(pod: Object) -> str:
    """Return Kubernetes' reason for the disruption of a pod; empty without a disruption."""
    reason = str((pod.get("status") or {}).get("reason") or "")
    if reason in _LOST | _EVICTED:
        return reason
    target = condition_of(pod, "DisruptionTarget")
    return str(target.get("reason", "")) if target.get("status") == "True" else ""


def _reason(pod: Object) -> str:
    status: Mapping[str, Any] = pod.get("status") or {}
    return str(status.get("message") or condition_of(pod, "DisruptionTarget").get("message") or "")


def disruption(pod: Object) -> str:
    """Return the disruption of a pod as evidence, with reason and message."""
    return f"pod {pod['metadata']['name']}: {disruption_reason(pod)}: {line_of(_reason(pod))}"


def pods_of_events(events: list[Object]) -> list[Object]:
    """Return the pods of events, with their names only."""
    names = dict.fromkeys(str(event["involvedObject"]["name"]) for event in events)
    return [{"metadata": {"name": name}} for name in names]


def _has_no_replacement(facts: Facts, event: Object) -> bool:
    """Return True if the pod of an event is gone and has no running replacement."""
    if facts.is_over:
        return False
    name = event["involvedObject"]["name"]
    now = facts.pod(name)
    runs = now is not None and now.get("status", {}).get("phase") == "Running"
    return not runs or (now is not None and now["metadata"]["uid"] == event["involvedObject"].get("uid"))


def _limit(pod: Object, container: str) -> str:
    for item in pod["spec"]["containers"]:
        if container == item["name"]:
            return str(((item.get("resources") or {}).get("limits") or {}).get("memory", ""))
    return ""


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
        f"{subject(names_of(pods))} {_was_or_were(pods)} evicted: {why.rstrip('.')}.",
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
        f"{subject(names_of(pods))} {_was_or_were(pods)} deleted.",
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


def _was_or_were(pods: Sequence[Object]) -> str:
    return "was" if len(pods) == 1 else "were"
