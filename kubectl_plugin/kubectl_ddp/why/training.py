"""Checks of running pods: rendezvous, progress, and the ranks that block others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ddp_trainer.common.constants import GroupState
from ddp_trainer.common.hanging import RankStatus
from ddp_trainer.common.time_classes import Section
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, RelatedKind, condition_of, epoch
from kubectl_ddp.status.describe import no_progress_text, progress_text
from kubectl_ddp.status.job_state import State, group_state
from kubectl_ddp.status.rank_status import RankActivity, is_reported, late_nodes
from kubectl_ddp.status.termination_message import stores
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import duration
from kubectl_ddp.why.facts import Facts, line_of, names_of, subject
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

_HUNG: Final = re.compile(r"\bhang: (?!stack of)(.+)")
_MISSING: Final = re.compile(r"(\d+ nodes? ready.*?(?:missing: [^.]*?)?), waiting for a group")
_NO_STORE: Final = re.compile(r"(The store at .* cannot be reached.*)")
_NESTED: Final = re.compile(r"\bddp-launch: nested launcher: (.+)")
_NO_ROOM: Final = re.compile(r"(?:\bddp-launch: disk: |\b)((?:the log file|No checkpoint could be saved in) .+)")
_DISK_SECONDS: Final = 600.0
"""Seconds for which a failed write counts; the next checkpoint may take as long."""
_WAITING: Final = re.compile(r"\bddp-launch: waiting: (.+)")
LONG_SECTIONS: Final = frozenset({Section.SETUP, Section.EVALUATION, Section.CHECKPOINT, Section.ASIDE})
_WORKING: Final = frozenset({State.RUNNING, State.STARTING, State.RESTARTING})
_FORMING: Final = frozenset({GroupState.PENDING, GroupState.RENDEZVOUS})
_MOST_SILENT: Final = 4
_MOST_ABSENT: Final = 8
STORE_SECONDS: Final = 15.0
"""Seconds that a store may take to start."""


def hang(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether ranks run without progress."""
    if facts.state.state not in _WORKING:
        return
    reported_at, message, is_hung = _reported(facts)
    stepped = facts.last_step
    if facts.state.stall is not None:
        is_current = True
    else:  # a launcher that can report stalls reports none; another's report holds until a rank steps
        is_current = bool(message) and not is_reported(facts.samples) and (stepped is None or stepped < reported_at)
    if is_current:
        yield _stalled(facts, reported_at, message, is_hung=is_hung)
    elif facts.is_training_stalled and not any(_is_in_long_section(rank.status) for rank in facts.hang_snapshot.ranks):
        yield diagnosis(
            Cause.HANG,
            f"No rank has stepped for {duration(facts.now - (stepped or facts.now))}.",
            f"'{program()} top {facts.name}{location_flags()}' shows which rank is behind; its log, what it was about.",
            _slowest_ranks(facts),
        )


def _reported(facts: Facts) -> tuple[float, str, bool]:
    """Return the launchers' last report of a stall: time, message, and True if the rank has exceeded its limit."""
    hung, waiting = _last_match(facts, _HUNG), _last_match(facts, _WAITING)
    return (*hung, True) if hung[0] >= waiting[0] and hung[1] else (*waiting, False)


def _stalled(facts: Facts, reported_at: float, message: str, *, is_hung: bool) -> CauseFinding:
    text = message.rstrip(".") or no_progress_text(facts.state).partition(", ")[2]
    seconds = facts.state.stall.seconds if facts.state.stall else facts.now - reported_at
    printed = (f"the launcher printed this {duration(max(0.0, facts.now - reported_at))} ago",) if message else ()
    return diagnosis(
        Cause.HANG,
        f"It hangs: {text}." if is_hung else f"No rank has made progress for {duration(seconds)}: {text}.",
        f"'{program()} hang {facts.name}{location_flags()}' shows every rank; '{program()} logs {facts.name} "
        f"--rank all{location_flags()}' has the stack; --env DDP_ON_HANG=act restarts a rank past its limit.",
        (*printed, *_slowest_ranks(facts)),
    )


def _is_in_long_section(status: RankStatus) -> bool:
    """Return True if a rank is in a section that takes long by nature, and within its limit."""
    return status.section in LONG_SECTIONS and not status.has_exceeded_limit(1.0)


def _slowest_ranks(facts: Facts) -> list[str]:
    """Return the ranks that are stopped, dead, or furthest behind."""
    ranks = facts.state.ranks
    odd = [f"rank {rank.rank} on {rank.pod} is {rank.state}" for rank in ranks if rank.state is not RankActivity.UP]
    steps = [rank.step for rank in ranks if rank.step is not None]
    if steps and min(steps) != max(steps):
        odd += [
            f"rank {rank.rank} on {rank.pod} is at step {rank.step}, others at {max(steps)}"
            for rank in ranks
            if rank.step == min(steps)
        ]
    return odd[:_MOST_SILENT]


def store(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the rendezvous store does not run or cannot be reached."""
    if not _is_in_rendezvous(facts) or not facts.is_on_cluster or job_kinds.uses_torchrun(facts.snapshot.job):
        return
    pods = [pod for pod in stores(facts.pods) if pod.get("status", {}).get("phase") == "Running"]
    is_absent = not pods and facts.age_seconds > STORE_SECONDS
    _, message = _last_match(facts, _NO_STORE)
    if not is_absent and (not message or _waiting_pods(facts)):
        return
    state = "does not run" if is_absent else "cannot be reached"
    yield diagnosis(
        Cause.STORE,
        f"The rendezvous store {state}, so the ranks cannot find one another.",
        f"'kubectl get job,pod -l ddp.dev/job={facts.name},ddp.dev/role=store' shows it."
        if is_absent
        else "See the NetworkPolicies of the namespace, and whether its DNS works.",
        [_store_pods(facts), f"the launcher: {line_of(message)}" if message else ""],
    )


def _store_pods(facts: Facts) -> str:
    pods = stores(facts.snapshot.pods)
    states = [f"pod {pod['metadata']['name']} is {pod.get('status', {}).get('phase')}" for pod in pods]
    return "; ".join(states) or "no pod has the role of the store"


def outside_group(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether nodes run and cannot join the group. A job that trains does so without them."""
    nodes = [node for node in late_nodes(facts.state.outside, facts.now) if node.is_fault]
    if not nodes:
        return
    first = nodes[0]
    trains = f" The job trains without {'it' if len(nodes) == 1 else 'them'}." if facts.is_training else ""
    more = f"; so {'is' if len(nodes) == 2 else 'are'} {len(nodes) - 1} more" if len(nodes) > 1 else ""
    lines = [line_of(line.partition(" ")[2]) for line in facts.lines.get(first.pod, ()) if _NO_STORE.search(line)]
    evidence = [*(node.describe(facts.now) for node in nodes[:_MOST_ABSENT]), *lines[-1:]]
    yield diagnosis(
        Cause.OUTSIDE_GROUP,
        f"A node is outside of the group, {first.describe(facts.now)}{more}.{trains}",
        f"{first.fix} 'kubectl logs {first.pod}' shows its attempts.",
        evidence,
        exit_code=0 if facts.is_training else None,
    )


def rendezvous(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether some pods wait for others."""
    came = _waiting_pods(facts) if _is_in_rendezvous(facts) else []
    if not came:
        return
    absent = [pod for pod in facts.workers if pod not in came]
    _, message = _last_match(facts, _MISSING)
    evidence = [
        f"the launcher of {came[0]['metadata']['name']}: {message}",
        *(_why_absent(facts, pod) for pod in absent),
    ]
    count = f"{len(came)} of {facts.state.nodes.minimum} pods have come"
    name = absent[0]["metadata"]["name"] if absent else ""
    yield diagnosis(
        Cause.RENDEZVOUS,
        f"The ranks wait for one another: {count}{f', {names_of(absent)} not' if absent else ''}.",
        f"'kubectl logs {name}' shows its state; a NetworkPolicy or its node's network may block it."
        if absent
        else f"'{program()} logs {facts.name} --rank all{location_flags()}' prints the output of the launchers.",
        evidence[:_MOST_ABSENT],
    )


def _waiting_pods(facts: Facts) -> list[Object]:
    """Return the worker pods that have joined the rendezvous and wait for others."""
    names = {name for name, lines in facts.lines.items() if any(_MISSING.search(line) for line in lines)}
    return [pod for pod in facts.workers if pod["metadata"]["name"] in names]


def _why_absent(facts: Facts, pod: Object) -> str:
    name = pod["metadata"]["name"]
    last = next((line.partition(" ")[2] for line in reversed(facts.lines.get(name, ()))), "")
    return f"pod {name}: {line_of(last)}" if last else f"pod {name} is {pod.get('status', {}).get('phase')}"


def _is_in_rendezvous(facts: Facts) -> bool:
    """Return True if pods run and their ranks have not formed a group."""
    if facts.state.state not in _WORKING:
        return False
    states = {group_state(samples) for samples in facts.samples.values()} - {""}
    if states:
        return bool(states & _FORMING) and GroupState.RUNNING not in states
    return facts.state.state is not State.RUNNING or not facts.is_training


def nested_launcher(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the script starts a launcher in every rank."""
    _, message = _last_match(facts, _NESTED)
    if message and facts.state.state in _WORKING:
        yield diagnosis(
            Cause.NESTED_LAUNCHER,
            f"{subject(message.rstrip('.'))}.",
            "Submit the program that it starts, with --nnodes and --nproc; the launcher of the job starts the ranks.",
            exit_code=0,
        )


def full_disk(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a running job could not write its checkpoints or logs in the last minutes."""
    moment, message = _last_match(facts, _NO_ROOM)
    if message and facts.state.state in _WORKING and facts.now - moment < _DISK_SECONDS:
        is_log = message.startswith("the log file")
        yield diagnosis(
            Cause.DISK_FULL,
            f"It runs, but {message if is_log else message[0].lower() + message[1:]}",
            "The ranks keep training; the logs of the pods are complete."
            if is_log
            else "Make room there or enlarge the volume; a restart loses the work since the last checkpoint.",
            (f"printed {duration(max(0.0, facts.now - moment))} ago",),
            exit_code=0,
        )


def _last_match(facts: Facts, pattern: re.Pattern[str]) -> tuple[float, str]:
    """Return the last log line of any pod that matches a pattern: its time, and the text of the pattern's group."""
    found = [
        (line.partition(" ")[0], match[1])
        for lines in facts.lines.values()
        for line in lines
        if (match := pattern.search(line))
    ]
    moment, text = max(found, default=("", ""))
    return epoch(moment) or 0.0, text


def unhealthy_node(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a node reports a problem: pressure, or the finding of a problem detector (Xid, ECC)."""
    nodes = {pod["spec"].get("nodeName") for pod in facts.workers}
    for node in facts.around.of(RelatedKind.NODES):
        if node["metadata"]["name"] not in nodes:
            continue
        bad = [
            f"{condition['type']}: {line_of(condition.get('message'))}"
            for condition in node.get("status", {}).get("conditions") or ()
            if _is_bad(str(condition.get("type")), str(condition.get("status")))
        ]
        if bad:
            yield diagnosis(
                Cause.NODE_UNWELL,
                f"The node {node['metadata']['name']} is unwell: {bad[0].partition(':')[0]}.",
                f"'kubectl describe node {node['metadata']['name']}' says more; cordon it if it stays so.",
                bad,
                is_aside=facts.is_training or not _may_explain_failure(facts, bad),
            )


def _may_explain_failure(facts: Facts, bad: Sequence[str]) -> bool:
    """Return True if a node's problem may explain the failure.

    It does not explain an error raised by a script. Pressure does not explain anything once a rank has run.
    """
    error = facts.state.first_error
    is_pressure = all(text.partition(":")[0].endswith("Pressure") for text in bad)
    return not (error and error.is_users) and not (is_pressure and (error or facts.state.ranks))


def _is_bad(kind: str, status: str) -> bool:
    """Return True if a node condition is a problem; both polarities occur: ``KernelReady`` and ``KernelDeadlock``."""
    if kind == "Ready":
        return False  # a lost node is a separate cause
    return status == ("False" if kind.endswith(("Ready", "Healthy")) else "True")


def present(facts: Facts) -> Iterator[CauseFinding]:
    """Report the state of a job without detected problems: training or starting."""
    if facts.is_training:
        progress = progress_text(facts.state)
        silent = [f"pod {name} returns no metrics" for name in facts.state.silent[:_MOST_SILENT]]
        long = [
            f"rank {status.rank} is in section {status.section} for {duration(status.seconds)}"
            for status in (rank.status for rank in facts.hang_snapshot.ranks)
            if _is_in_long_section(status)
        ]
        if facts.state.is_unresponsive and facts.is_on_cluster:
            yield diagnosis(
                Cause.RUNNING,
                "It runs, but no pod returns metrics, so its steps, its loss and a hang cannot be seen.",
                "The metrics need two rights: get pods/proxy for you, and get the EndpointSlice 'kubernetes' in "
                "namespace 'default' for the user who submits. Without the second, the job's NetworkPolicy does not "
                f"admit the API server. '{program()} doctor{location_flags()}' prints the Role; then submit the job "
                "again, or with --metrics-from ADDRESS.",
                silent,
            )
            return
        yield diagnosis(
            Cause.RUNNING,
            f"It runs: {progress}." if progress else "It runs; nothing is wrong that can be seen.",
            f"'{program()} logs {facts.name} --rank all -f{location_flags()}' prints what its ranks write."
            if facts.state.uses_torchrun
            else f"'{program()} top {facts.name}{location_flags()}' shows its ranks live.",
            (*long[:_MOST_SILENT], *silent),
        )
    elif not facts.is_over and facts.state.state in {*_WORKING, State.PENDING}:
        waiting = [pod for pod in facts.workers if condition_of(pod, "Ready").get("status") != "True"]
        yield diagnosis(
            Cause.STARTING,
            facts.state.reason or "It is starting.",
            f"'{program()} wait {facts.name} --for=running{location_flags()}' waits for it; ask again if it stays so.",
            (f"{subject(names_of(waiting))} not ready",) if waiting else (),
        )
