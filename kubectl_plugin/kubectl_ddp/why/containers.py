"""Checks of containers that do not run on their node: image, configuration, init, volume, network, program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kubectl_ddp.kube.objects import Object, epoch, main_status
from kubectl_ddp.why.facts import Facts, JobContainer, format_event, line_of, message_of, names_of, subject
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CONFIG: Final = frozenset({"CreateContainerConfigError"})
_START: Final = frozenset({"RunContainerError", "CreateContainerError", "StartError", "ContainerCannotRun"})
_LINGERS_SECONDS: Final = 30.0
"""Seconds that a container may run after the job's, such as a proxy that is told to stop."""
_MISSING: Final = re.compile(
    r"""(configmap|secret)s? "([^"]+)" not found|couldn't find key (\S+) in (ConfigMap|Secret) (\S+)""", re.IGNORECASE
)
_PULLED: Final = re.compile(r'pulling image "([^"]+)"')
_IMAGE_HELPS: Final = (
    (
        re.compile(r"unauthorized|denied|forbidden|authentication|40[13]", re.IGNORECASE),
        "The registry wants credentials: name their Secret with --image-pull-secret, or in the service account.",
    ),
    (re.compile(r"no match for platform|exec format", re.IGNORECASE), "Build the image for the nodes' architecture."),
    (re.compile(r"InvalidImageName|couldn't parse image", re.IGNORECASE), "Write it as registry/name:version."),
    (
        re.compile(r"not found|manifest unknown", re.IGNORECASE),
        "Check name and tag; push the image, then wait or restart the job.",
    ),
    (
        re.compile(r"dial tcp|no such host|timeout|connect", re.IGNORECASE),
        "The node cannot reach the registry: check name, proxy and network.",
    ),
)

_START_HELPS: Final = (
    (re.compile(r"exec format error"), "Build the image for the nodes' architecture."),
    (
        re.compile(r'exec: "([^"]*/)?python[^"/]*":'),
        "Name the interpreter of the image '{image}' with --python; an image without Python cannot run a job.",
    ),
    (
        re.compile(r'exec: "ddp-launch":'),
        "Mount the launcher with --runtime-image, since the image '{image}' does not hold it.",
    ),
    (re.compile(""), "See that the image '{image}' has the program."),
)
"""Pattern of the runtime's message → its fix. The first match counts."""


def image(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether an image cannot be pulled."""
    held = [item for item in facts.containers() if item.waiting.get("reason") in _IMAGE]
    if not held:
        return
    first = held[0]
    # It may be the image of a volume.
    pulled = _PULLED.search(str(first.waiting.get("message")))
    reason, name = first.waiting.get("reason"), pulled[1] if pulled else first.status.get("image")
    pulls = [event for event in facts.events("Failed", "InspectFailed") if "image" in message_of(event).lower()]
    words = [format_event(event) for event in pulls[-2:]]
    lacking = [format_event(event) for event in facts.events("FailedToRetrieveImagePullSecret")[-1:]]
    text = f"{reason}: {line_of(first.waiting.get('message'))}"
    messages = f"{text} {' '.join(words)}"
    yield diagnosis(
        Cause.IMAGE,
        f"The image '{name}' cannot be got for {_pod_names(held)}: {reason}.",
        "Create the image pull secret that the job or its service account names."
        if lacking
        else next(
            (hint for pattern, hint in _IMAGE_HELPS if pattern.search(messages)), "See the message of the registry."
        ),
        (f"{first.pod_name}: {text}", *words, *lacking),
    )


def config(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a ConfigMap, a Secret or a key is missing, for a variable or a volume."""
    held = [
        (item.pod, str(item.waiting.get("message")))
        for item in facts.containers()
        if item.waiting.get("reason") in _CONFIG
    ]
    held += [(pod, text) for pod, event in _mount_failures(facts) if _MISSING.search(text := message_of(event))]
    if not held:
        return
    pods = [pod for pod, _ in held]
    text = held[0][1]
    match = _MISSING.search(text)
    what = _missing(match) if match else line_of(text)
    yield diagnosis(
        Cause.CONFIG,
        f"{subject(names_of(_distinct(pods)))} cannot be set up: {what}.",
        "Create it in the job's namespace; the pods then start by themselves.",
        [f"{pod['metadata']['name']}: {line_of(message)}" for pod, message in held[:4]],
    )


def _missing(match: re.Match[str]) -> str:
    if match[2]:
        kind = "ConfigMap" if match[1].lower() == "configmap" else "Secret"
        return f"{kind} '{match[2]}' does not exist"
    return f"the {match[4]} '{match[5].rpartition('/')[2]}' has no key '{match[3]}'"


def volume(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a volume cannot be attached or mounted."""
    failures = _mount_failures(facts)
    # A pod that lacks an object often has a second event, such as a timeout of the kubelet's cache.
    lacking = {pod["metadata"]["uid"] for pod, event in failures if _MISSING.search(message_of(event))}
    failed = [(pod, event) for pod, event in failures if pod["metadata"]["uid"] not in lacking]
    if not failed:
        return
    pods = _distinct([pod for pod, _ in failed])
    name = pods[0]["metadata"]["name"]
    yield diagnosis(
        Cause.VOLUME,
        f"A volume of {names_of(pods)} cannot be mounted.",
        f"'kubectl describe pod {name}' names the volume; see that its driver runs on the node.",
        [format_event(event) for _, event in failed[-3:]],
    )


def sandbox(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the node cannot set up the pod's network."""
    failed = [
        (pod, event)
        for event in facts.events("FailedCreatePodSandBox")
        if (pod := facts.pod(event["involvedObject"]["name"])) is not None and _is_waiting(pod)
    ]
    if failed:
        pod, event = failed[-1]
        node = pod["spec"].get("nodeName")
        yield diagnosis(
            Cause.SANDBOX,
            f"The node {node} cannot set up {names_of([pod])}: its network or runtime fails.",
            f"Report it to the cluster administrator; 'kubectl cordon {node}' keeps other pods away.",
            (format_event(event),),
        )


def init(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether an init container fails that the job's container waits for. Sidecars end after it, often badly."""
    for item in facts.containers():
        ended = next((ending for ending in item.endings if ending.get("exitCode")), None)
        if not (item.is_init and item.holds_job) or ended is None or _has_passed(item) or ended.get("reason") in _START:
            continue
        name = item.status["name"]
        yield diagnosis(
            Cause.INIT,
            f"The init container '{name}' of pod {item.pod_name} fails: it exited with code {ended['exitCode']}.",
            f"'kubectl logs {item.pod_name} -c {name}' prints what it wrote.",
            (f"{item.pod_name}/{name}: {line_of(ended.get('message') or ended.get('reason'))}",),
        )
        return


def _has_passed(container: JobContainer) -> bool:
    ended = (container.status.get("state") or {}).get("terminated") or {}
    return bool(container.status.get("ready")) or ended.get("exitCode") == 0


def start(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a container's program cannot be started."""
    for item in facts.containers():
        ended = next((ending for ending in item.endings if ending.get("reason") in _START), None)
        is_held = item.waiting.get("reason") in _START
        if (item.is_init and not item.holds_job) or (ended is None and not is_held):
            continue
        message = str((ended or {}).get("message") or item.waiting.get("message"))
        fix = next(fix for pattern, fix in _START_HELPS if pattern.search(message))
        yield diagnosis(
            Cause.START,
            f"The container of pod {item.pod_name} cannot be started: {_program(message)}.",
            fix.format(image=item.status.get("image")),
            (f"{item.pod_name}: {line_of(message)}",),
        )
        return


def sidecar(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a container beside the job's, such as a webhook's proxy, keeps a pod from ending."""
    for pod in () if facts.is_over else facts.workers:
        main = main_status(pod)
        ended = (main.get("state") or {}).get("terminated") or {}
        finished = epoch(ended.get("finishedAt"))
        running = [str(item.status["name"]) for item in facts.containers() if item.pod is pod and _is_sidecar(item)]
        if running and finished is not None and facts.now - finished > _LINGERS_SECONDS:
            name, other = pod["metadata"]["name"], running[0]
            yield diagnosis(
                Cause.SIDECAR,
                f"The program of pod {name} has ended, and its container '{other}' keeps the pod running.",
                "Have whatever adds it make it a native sidecar (an init container with 'restartPolicy: Always'), or "
                "turn it off for the job with --label or --annotation.",
                (f"{name}: '{main['name']}' ended with exit code {ended.get('exitCode')}, '{other}' runs",),
            )
            return


def _is_sidecar(container: JobContainer) -> bool:
    return not container.is_init and not container.holds_job and "running" in (container.status.get("state") or {})


def _program(text: str) -> str:
    match = re.search(r'exec: "([^"]+)": (?:stat [^:]*: )?([^:"]+)', text)
    return f"'{match[1]}': {match[2].strip()}" if match else line_of(text, most=160)


def _mount_failures(facts: Facts) -> list[tuple[Object, Object]]:
    """Return the waiting pods, each with an event about a volume that is missing."""
    return [
        (pod, event)
        for event in facts.events("FailedMount", "FailedAttachVolume", "FailedMapVolume")
        if (pod := facts.pod(event["involvedObject"]["name"])) is not None
        and _is_waiting(pod)
        # An object created moments later is not missing for long, but its event remains.
        and not _has_volumes(pod)
        and event["involvedObject"].get("uid") == pod["metadata"]["uid"]
    ]


def _is_waiting(pod: Object) -> bool:
    states = [status.get("state") or {} for status in pod.get("status", {}).get("containerStatuses") or ()]
    return pod.get("status", {}).get("phase") == "Pending" and not any("running" in state for state in states)


def _has_volumes(pod: Object) -> bool:
    """Return True if the kubelet has reached the containers, which requires all volumes."""
    states = [status.get("state") or {} for status in pod.get("status", {}).get("containerStatuses") or ()]
    reasons = {(state.get("waiting") or {}).get("reason") for state in states}
    return bool(reasons & (_IMAGE | _CONFIG | _START))


def _pod_names(held: list[JobContainer]) -> str:
    return names_of(_distinct([item.pod for item in held]))


def _distinct(pods: list[Object]) -> list[Object]:
    return list({pod["metadata"]["name"]: pod for pod in pods}.values())
