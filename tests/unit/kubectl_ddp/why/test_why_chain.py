"""Findings are pure: facts in, causes in order out. What a real cluster says is judged in tests/cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.hanging import RankState, RankStatus
from kubectl_ddp.hang.collector import HangSnapshot, PodReport, RankReport
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE as QUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind
from kubectl_ddp.status.rank_status import RankActivity
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.why.diagnosis import CHECKS, OF_WAITING_PODS, run_checks
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Cause
from kubectl_ddp.why.scheduling import nodes_by_predicate
from tests.support import kube_objects
from tests.support.diagnosed import LATER, NOW, event, facts, first, refused, trains
from tests.support.kube_objects import job, pod, pod_metrics, rank_metrics, terminated, waiting


def of_running(**known: Any) -> Facts:
    return facts(job("Created", "Running"), pod(0), pod(1), **known)


def of_failed(code: int, message: object) -> Facts:
    return facts(job("Created", "Failed"), pod(0, terminated(code, message)))


def of_held(reason: str, message: str) -> Facts:
    held = pod(0, waiting(reason, message))
    held["status"]["containerStatuses"][0]["image"] = "user:1"
    return facts(job("Created"), held)


def test_a_job_that_trains_is_said_to_and_exits_0() -> None:
    found = first(of_running(metrics=trains()))
    assert (found.subject, found.exit_code) == (Cause.RUNNING, 0)
    assert "step 10 of 100" in found.message


def test_what_an_elastic_job_can_do_without_comes_after_that_it_runs() -> None:
    lacks = refused("0/2 nodes are available: 2 Insufficient cpu.", 1)
    first, second = run_checks(facts(job("Created", "Running"), pod(0), lacks, metrics=trains()))
    assert (first.subject, first.severity) == (Cause.RUNNING, Severity.OK)
    assert (second.subject, second.severity) == (Cause.UNSCHEDULABLE, Severity.INFO)


def test_ranks_that_have_not_stepped_for_long_hang_and_those_behind_are_named() -> None:
    metrics = {
        "digits-worker-0": pod_metrics() + rank_metrics(0, step=10, last_step=NOW - 300),
        "digits-worker-1": pod_metrics() + rank_metrics(1, step=9, last_step=NOW - 301),
    }
    found = first(of_running(metrics=metrics))
    assert (found.subject, found.exit_code) == (Cause.HANG, 14)
    assert "300s" in found.message or "5m" in found.message
    assert "rank 1 on digits-worker-1 is at step 9, others at 10" in found.evidence


def test_a_hang_that_the_launcher_named_is_over_when_ranks_have_stepped_since() -> None:
    line = (f"{LATER} hang: rank 1 on digits-worker-1 did not enter all_reduce #8; the others wait for it",)
    known = of_running(metrics=trains(), lines={"digits-worker-0": line})
    assert first(known).subject is Cause.RUNNING
    mute = {name: pod_metrics() for name in trains()}
    known = of_running(metrics=mute, lines={"digits-worker-0": line})
    assert (first(known).subject, "did not enter all_reduce #8" in first(known).message) == (Cause.HANG, True)


WAITS = "the others wait for rank 1 on digits-worker-1, which did not enter all_reduce #8; at load.py:3 for 31.0 s"
WAITING_LINE = (f"{LATER} ddp-launch: waiting: {WAITS}",)


def stalled(seconds: float, rank: int = 1) -> dict[str, str]:
    return {name: pod_metrics() + kube_objects.stall_metrics(seconds, rank) for name in trains()}


def test_a_rank_that_others_wait_for_is_named_first_also_of_a_script_without_steps() -> None:
    known = of_running(metrics=stalled(34), lines={"digits-worker-0": WAITING_LINE})
    found = first(known)
    assert (found.subject, found.exit_code) == (Cause.HANG, 14)
    assert "the others wait for rank 1 on digits-worker-1, which did not enter all_reduce #8" in found.message
    assert "hangs" not in found.message


def test_it_is_named_by_the_metrics_alone_where_the_logs_may_not_be_read() -> None:
    found = first(of_running(metrics=stalled(34)))
    assert (found.subject, "rank 1" in found.message) == (Cause.HANG, True)


def test_a_report_is_over_when_the_launchers_report_progress() -> None:
    known = of_running(metrics=stalled(0, -1), lines={"digits-worker-0": WAITING_LINE})
    assert first(known).subject is Cause.RUNNING


@pytest.mark.parametrize(("seconds", "cause"), [(90.0, Cause.RUNNING), (700.0, Cause.HANG)])
def test_an_evaluation_is_no_hang_before_its_own_limit(seconds: float, cause: Cause) -> None:
    metrics = {name: pod_metrics() + rank_metrics(0, last_step=NOW - seconds) for name in trains()}
    place: dict[str, Any] = {"rank": 0, "local_rank": 0, "node": "digits-worker-0", "section": "evaluation"}
    rank_status = RankStatus(**place, state=RankState.ALIVE, seconds=seconds, limit=600.0)
    rank = RankReport(status=rank_status, pod="digits-worker-0", pid=7, usual=None, stack_from="python")
    shown = PodReport(pod="digits-worker-0", generation=1, on_hang="warn", ranks=(rank,), named=(), ras="")
    known = replace(of_running(metrics=metrics), hang_snapshot=HangSnapshot(pods=(shown,)))
    found = first(known)
    assert found.subject is cause
    if cause is Cause.RUNNING:
        assert any("evaluation" in line for line in found.evidence)


TAKEN_APART = {"had taint {a: b}": 1, "Insufficient a.b/gpu": 2}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("0/3 nodes are available: 1 node(s) had taint {a: b}, 2 Insufficient a.b/gpu. preemption: x", TAKEN_APART),
        ("0/2 nodes are available: 2 node(s) didn't match a/b. no new claims to deallocate", {"didn't match a/b": 2}),
        ("running PreBind plugin failed", {}),
    ],
)
def test_the_schedulers_message_is_taken_apart_by_predicate(message: str, expected: dict[str, int]) -> None:
    assert nodes_by_predicate(message) == expected


def test_the_pod_of_a_gang_that_finds_no_node_is_told_and_not_the_one_that_waits_for_it() -> None:
    waits = refused("pod group is unschedulable, waiting for minCount pods from a gang to be scheduled")
    found = first(facts(job("Created"), waits, refused("0/2 nodes are available: 2 Insufficient cpu.", 1)))
    assert found.subject == Cause.UNSCHEDULABLE
    assert "2 Insufficient cpu" in found.message


def test_a_pod_that_is_too_large_for_every_node_is_told_by_its_size() -> None:
    large = refused("0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient cpu.")
    large["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500"}}
    machines = [{"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2", "pods": "9"}}} for name in "ab"]
    found = first(facts(job("Created"), large, around={RelatedKind.NODES: tuple(machines)}))
    assert found.message == "Pod digits-worker-0 fits no node: no machine has 500 cpu, the largest has 2."
    assert found.hint == "Request less per node, or add a larger machine."


def test_a_job_without_metrics_is_told_which_rights_they_need() -> None:
    found = first(of_running())
    assert (found.subject, found.exit_code) == (Cause.RUNNING, 0)
    assert "no pod returns metrics" in found.message
    assert "EndpointSlice 'kubernetes' in namespace 'default'" in found.hint
    assert found.evidence == ("pod digits-worker-0 returns no metrics", "pod digits-worker-1 returns no metrics")


def test_the_schedulers_own_words_are_quoted_beside_the_labels_that_the_pods_ask_for() -> None:
    text = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    selects = refused(text)
    selects["spec"]["nodeSelector"] = {"disk": "ssd"}
    found = first(facts(job("Created"), selects))
    assert found.subject is Cause.UNSCHEDULABLE
    assert found.evidence == (f"the scheduler: {text}", "nodeSelector of the pods: disk=ssd")


def test_a_scheduler_that_says_nothing_is_quoted_with_nothing() -> None:
    found = first(facts(job("Created"), refused("")))
    assert found.message == "Pod digits-worker-0 fits no node: the scheduler does not say why."
    assert found.evidence == ()


def test_devices_that_cannot_be_claimed_are_looked_for_among_claims() -> None:
    found = first(facts(job("Created"), refused("0/2 nodes are available: 2 cannot allocate all claims.")))
    assert found.hint.startswith("'kubectl get resourceclaims,resourceslices'")


@pytest.mark.parametrize("reason", ["FailedMount", "FailedCreate", "FailedCreatePod", "Evicted", "Failed"])
def test_an_event_without_a_message_makes_nobody_stumble(reason: str) -> None:
    bare = event(reason, "") | {"message": None}
    known = facts(job("Created"), pod(0, waiting("ErrImagePull"), uid="gone"), around={RelatedKind.EVENTS: (bare,)})
    assert all(finding.message.endswith(".") for finding in run_checks(known))


def test_a_volume_on_other_nodes_is_a_cause_of_its_own_however_the_scheduler_says_it() -> None:
    for words in ("had volume node affinity conflict", "didn't match PersistentVolume's node affinity"):
        text = f"0/3 nodes are available: 1 node(s) had untolerated taint {{x: }}, 2 node(s) {words}."
        assert first(facts(job("Created"), refused(text))).subject == Cause.VOLUME


def test_a_volume_that_could_not_be_mounted_at_first_is_no_cause_once_the_kubelet_is_past_it() -> None:
    text = 'MountVolume.SetUp failed for volume "api" : failed to sync configmap cache'
    slow = event("FailedMount", text, uid="pod-worker-0")
    around = {RelatedKind.EVENTS: (slow,)}
    assert first(facts(job("Created"), pod(0, waiting("ContainerCreating")), around=around)).subject is Cause.VOLUME
    held = pod(0, waiting("CreateContainerConfigError", 'secret "hub" not found'))
    assert first(facts(job("Created"), held, around=around)).message.endswith("Secret 'hub' does not exist.")


def test_a_missing_object_is_the_cause_though_the_kubelet_also_waited_for_its_cache() -> None:
    missing = event("FailedMount", 'configmap "app" not found', uid="pod-worker-0")
    slow = event("FailedMount", "failed to sync configmap cache: timed out waiting", uid="pod-worker-0")
    slow["metadata"] = {"uid": "slow"}
    events = (missing, slow)
    known = facts(job("Created"), pod(0, waiting("ContainerCreating")), around={RelatedKind.EVENTS: events})
    assert [finding.subject for finding in run_checks(known)] == [Cause.CONFIG]


def test_an_image_pull_secret_that_the_kubelet_misses_is_named() -> None:
    lost = "Unable to retrieve some image pull secrets (registry); attempting to pull the image may not succeed."
    events = (event("FailedToRetrieveImagePullSecret", lost, uid="pod-worker-0"),)
    held = pod(0, waiting("ErrImagePull", "pull access denied"))
    found = first(facts(job("Created"), held, around={RelatedKind.EVENTS: events}))
    assert found.subject is Cause.IMAGE
    assert found.hint == "Create the image pull secret that the job or its service account names."
    assert "(registry)" in found.evidence[-1]


def test_an_operator_that_crashes_is_named_with_its_pods_words() -> None:
    unready = {"type": "Ready", "status": "False"}
    crashes = {"restartCount": 7, "state": waiting("CrashLoopBackOff", "back-off 5m")}
    sick = {
        "metadata": {"name": "training-operator-1", "namespace": "kubeflow"},
        "status": {"phase": "Running", "conditions": [unready], "containerStatuses": [crashes]},
    }
    bare = job()
    bare["status"] = {}
    found = first(facts(bare, around={RelatedKind.OPERATOR: (sick,)}))
    assert (found.subject, found.exit_code) == (Cause.OPERATOR, 13)
    assert "does not run as it should" in found.message
    assert found.evidence[0] == "pod kubeflow/training-operator-1: CrashLoopBackOff after 7 restarts: back-off 5m"
    assert "kubectl -n kubeflow logs -l control-plane=kubeflow-training-operator" in found.hint
    assert "is not running in this cluster" in first(facts(bare, around={RelatedKind.OPERATOR: ()})).message
    young = facts(bare, around={RelatedKind.OPERATOR: ()}, now=kube_objects.CREATED_EPOCH + 2)
    assert first(young).subject is not Cause.OPERATOR


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("Preempted", "Preempted by pod other on node n1", Cause.PREEMPTED),
        ("Evicted", "The node was low on resource: memory.", Cause.EVICTED),
        ("TaintManagerEviction", "Marking for deletion Pod team/digits-worker-0", Cause.NODE_LOST),
    ],
)
def test_what_became_of_a_pod_that_is_gone_is_told_by_its_events_and_is_past_once_another_runs(
    reason: str, message: str, cause: Cause
) -> None:
    around: dict[RelatedKind, tuple[Object, ...]] = {RelatedKind.EVENTS: (event(reason, message),)}
    pending = refused("0/2 nodes are available: 2 Insufficient cpu.")
    found = run_checks(facts(job("Created", "Restarting"), pending, pod(1), around=around))
    assert [item.subject for item in found][:2] == [cause, Cause.UNSCHEDULABLE]
    again = of_running(around=around, metrics=trains())
    assert first(again).subject is Cause.RUNNING


FAILED_LINE = "ddp-launch: failed: Rank 0 on digits-worker-0 failed first, it exited with code 1: KeyError: 'w'."


def failing(seconds_ago: float = 3, count: int = 4) -> dict[str, str]:
    failures = f"""ddp_worker_failures_total{{reason="python_exception"}} {count}
ddp_worker_failures_total{{reason="import_error"}} 0
ddp_last_failure_timestamp_seconds {NOW - seconds_ago}
ddp_last_failed_rank 0
"""
    return {"digits-worker-0": pod_metrics(restarts=count) + failures, "digits-worker-1": pod_metrics(restarts=count)}


def test_an_error_that_comes_at_every_start_is_named_while_the_job_runs() -> None:
    failed, again = f"{LATER} {FAILED_LINE}", f"{LATER} ddp-launch: generation 4"
    found = first(of_running(metrics=failing(), lines={"digits-worker-0": (failed, again, failed)}))
    assert (found.subject, found.exit_code, found.severity) == (Cause.ERROR, 10, Severity.ERROR)
    assert "KeyError: 'w'." in found.message
    assert "4 restarts used" in found.message
    assert found.evidence == ("the last 2 failures of digits-worker-0 have these words",)


@pytest.mark.parametrize(
    "metrics",
    [
        failing(count=1),
        failing(seconds_ago=600),
        {name: text + rank_metrics(0, step=5, last_step=NOW - 1) for name, text in failing().items()},
    ],
    ids=["it failed once", "it has run since", "it has stepped"],
)
def test_failures_that_are_over_are_not(metrics: dict[str, str]) -> None:
    assert first(of_running(metrics=metrics)).subject is Cause.RUNNING


def test_the_first_error_exits_with_whose_fault_it_was() -> None:
    report = {"rank": 3, "message": "ValueError: no", "reason": "python_exception", "timestamp": 1.0}
    users = of_failed(1, report)
    assert (first(users).subject, first(users).exit_code) == (Cause.ERROR, 10)
    died = report | {"message": "died of SIGKILL", "reason": "sigkill", "exit_code": 137}
    infrastructure = of_failed(137, died)
    assert (first(infrastructure).subject, first(infrastructure).exit_code) == (Cause.ERROR, 11)


GPU_FAULTS = [
    (
        "AcceleratorError: CUDA error: uncorrectable ECC error\nCUDA kernel errors might be ...",
        "Rank 3 on w-3 could not use its GPU on node gpu-7: AcceleratorError: CUDA error: uncorrectable ECC error.",
        "Cordon the node, drain it and reset the GPU",
    ),
    (
        "GPU 1 of gpu-7 does not work: CUDA error: unknown error. Fix: cordon the node.",
        "Rank 3 on w-3 could not use its GPU: GPU 1 of gpu-7 does not work: CUDA error: unknown error.",
        "needs a reboot.",
    ),
]


@pytest.mark.parametrize(("message", "sentence", "help_"), GPU_FAULTS)
def test_a_gpu_that_failed_is_a_cause_with_its_node_and_the_fix(message: str, sentence: str, help_: str) -> None:
    report = {"rank": 3, "pod": "w-3", "host": "gpu-7", "reason": "gpu_fault", "exit_code": 173, "timestamp": 1.0}
    found = run_checks(of_failed(93, report | {"message": message}))
    assert [item.subject for item in found] == [Cause.GPU_FAULT]
    assert (found[0].message, found[0].exit_code) == (sentence, 11)
    assert help_ in found[0].hint
    assert "'kubectl cordon gpu-7'" in found[0].hint
    assert "its worker could not use its GPU" in found[0].evidence


def test_a_pod_that_leaves_before_its_workers_start_names_its_gpu_as_well() -> None:
    report = {"result": "failed", "reason": "gpu_fault", "message": "GPU 0 of gpu-7 does not work: CUDA error: x."}
    found = run_checks(of_failed(173, report))
    assert [item.subject for item in found] == [Cause.GPU_FAULT]
    place = "Pod digits-worker-0 could not use its GPU on node node-0"
    assert found[0].message == f"{place}: GPU 0 of gpu-7 does not work: CUDA error: x."


def test_a_rank_that_ended_before_the_others_is_named_as_the_users_fault() -> None:
    report = {"rank": 3, "pod": "w-3", "message": "ended with code 0 before the others; rank 1 then failed: closed"}
    known = report | {"reason": "early_exit", "exit_code": 0, "pod_exit_code": 1, "timestamp": 1.0}
    found = first(of_failed(1, known))
    assert (found.subject, found.exit_code) == (Cause.ERROR, 10)
    assert found.message == "Rank 3 on w-3 ended with code 0 before the others; rank 1 then failed: closed."


def test_a_failed_job_of_which_nothing_is_left_says_so() -> None:
    found = first(facts(job("Created", "Failed")))
    assert (found.subject, found.exit_code) == (Cause.ERROR, 11)
    assert "no pod is left" in found.message


DIED = {"reason": "sigkill", "message": "died of SIGKILL", "exit_code": 137}
RAISED = {"reason": "python_exception", "message": "ValueError: no"}


def a_node_that_says(*conditions: tuple[str, str]) -> Object:
    report = [{"type": kind, "status": status, "message": f"{kind} {status}"} for kind, status in conditions]
    return {"metadata": {"name": "node-0"}, "spec": {}, "status": {"conditions": report}}


def test_detectors_that_say_what_is_well_are_not_taken_for_a_trouble() -> None:
    node = a_node_that_says(("Ready", "True"), ("KernelReady", "True"), ("KernelDeadlock", "False"))
    known = of_running(metrics=trains(), around={RelatedKind.NODES: (node,)})
    assert [finding.subject for finding in run_checks(known)] == [Cause.RUNNING]
    sick = a_node_that_says(("Ready", "True"), ("AcceleratedHardwareReady", "False"))
    known = of_running(metrics=trains(), around={RelatedKind.NODES: (sick,)})
    assert [finding.subject for finding in run_checks(known)] == [Cause.RUNNING, Cause.NODE_UNWELL]


@pytest.mark.parametrize(
    ("error", "trouble", "causes"),
    [
        (DIED, "XidCriticalError", [Cause.NODE_UNWELL, Cause.ERROR]),
        (DIED, "DiskPressure", [Cause.ERROR, Cause.NODE_UNWELL]),
        (RAISED, "XidCriticalError", [Cause.ERROR, Cause.NODE_UNWELL]),
    ],
)
def test_an_unwell_node_explains_others_errors(error: Mapping[str, Any], trouble: str, causes: list[Cause]) -> None:
    node = a_node_that_says(("Ready", "True"), (trouble, "True"))
    failed = pod(0, terminated(1, {"rank": 3, "timestamp": 1.0, **error}))
    known = facts(job("Created", "Failed"), failed, around={RelatedKind.NODES: (node,)})
    assert [finding.subject for finding in run_checks(known)] == causes


def test_no_check_stumbles_over_objects_that_say_next_to_nothing() -> None:
    bare = {"metadata": {"name": "digits-worker-0", "labels": {"ddp.dev/role": "worker"}}, "spec": {"containers": []}}
    for root in (job(), job("Created"), job("Failed"), job("Suspended")):
        known = facts(root, bare)
        for check in (*CHECKS, *OF_WAITING_PODS):
            assert all(finding.message.endswith(".") for finding in check(known)), check


def test_a_stopped_rank_is_evidence_of_a_hang() -> None:
    text = rank_metrics(0, last_step=NOW - 400) + 'ddp_rank_stopped{ddp_job="digits",rank="0"} 1\n'
    known = facts(
        job("Created", "Running"), pod(0, kube_objects.running()), metrics={"digits-worker-0": pod_metrics() + text}
    )
    assert known.state.ranks[0].state is RankActivity.STOPPED
    assert "rank 0 on digits-worker-0 is stopped" in first(known).evidence


def test_what_may_not_be_read_of_a_queue_is_said_and_the_queue_named() -> None:
    waits = job("Suspended", run_policy={"suspend": True}, metadata={"labels": {QUEUE: "team"}})
    found = run_checks(facts(waits, around={}))
    assert [item.subject for item in found] == [Cause.QUEUED]
    assert "'team'" in found[0].message


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("ddp-launch: disk: the log file /logs/stdout.log misses output: No space left on device.", "/logs/stdout.log"),
        ("[rank0] No checkpoint could be saved in /checkpoints: No space left on device.", "saved in /checkpoints"),
    ],
)
def test_a_disk_that_is_full_while_ranks_train_is_named_with_its_path(line: str, sentence: str) -> None:
    lines = {"digits-worker-0": (f"{LATER} {line}",)}
    known = of_running(metrics=trains(), lines=lines)
    assert (first(known).subject, first(known).exit_code) == (Cause.DISK_FULL, 0)
    assert sentence in first(known).message
    assert first(replace(known, now=NOW + 1000)).subject is not Cause.DISK_FULL


def test_a_launcher_in_every_rank_is_named_while_the_job_runs() -> None:
    line = f"{LATER} ddp-launch: nested launcher: rank 0 has started torchrun; where every rank does so, each fails"
    known = of_running(metrics=trains(), lines={"digits-worker-0": (line,)})
    assert (first(known).subject, first(known).exit_code) == (Cause.NESTED_LAUNCHER, 0)
    assert first(known).message.startswith("Rank 0 has started torchrun; where every rank does so")


def test_a_job_of_torchrun_has_no_store_that_could_be_missing() -> None:
    def starting(launcher: str) -> set[Cause]:
        annotations = {Annotation.SPEC: json.dumps({"launcher": launcher})}
        known = facts(job("Created", metadata={"annotations": annotations}), pod(0), pod(1))
        return {found.subject for found in run_checks(known)}

    assert Cause.STORE in starting("ddp")
    assert Cause.STORE not in starting("torchrun")


def test_an_operator_that_is_refused_is_not_called_absent() -> None:
    bare = job()
    bare["status"] = {}
    text = 'Error creating: pods "digits-worker-0" is forbidden: exceeded quota: small, limited: pods=0'
    failed = event("FailedCreatePod", text, "digits", kind="PyTorchJob", uid="u-1")
    found = run_checks(facts(bare, around={RelatedKind.EVENTS: (failed,), RelatedKind.OPERATOR: ()}))
    assert found[0].subject is Cause.QUOTA
    assert found[0].message == "The namespace's quota does not allow its pods: small, limited: pods=0."


REFUSED = "The API server refuses the pod of its rendezvous store"
OVER_QUOTA, LIMITED = "The namespace's quota does not allow the pod of its rendezvous store", "small, limited: pods=2"
RATIO = "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000"


@pytest.mark.parametrize(
    ("text", "cause", "message"),
    [
        (f"pods is forbidden: {RATIO}", Cause.ADMISSION, f"{REFUSED}: {RATIO}."),
        (f"pods is forbidden: exceeded quota: {LIMITED}", Cause.QUOTA, f"{OVER_QUOTA}: {LIMITED}."),
    ],
)
def test_a_store_whose_pod_is_refused_is_named_with_the_reason(text: str, cause: Cause, message: str) -> None:
    report = event("FailedCreate", f"Error creating: {text}", "digits-store", kind="Job", uid="u-9")
    waits = facts(job("Created"), pod(0), pod(1), around={RelatedKind.EVENTS: (report,)})
    found = first(waits)
    assert (found.subject, found.message) == (cause, message)
    assert "FailedCreate" in found.evidence[0]


@pytest.mark.parametrize(
    ("report", "fix"),
    [
        ('exec: "ddp-launch": executable file not found in $PATH', "Mount the launcher with --runtime-image"),
        ('exec: "python3": executable file not found in $PATH', "Name the interpreter of the image 'user:1' with"),
        ('exec: "/opt/bin/python": stat /opt/bin/python: no such file', "Name the interpreter of the image 'user:1'"),
        ("exec /usr/bin/python3: exec format error", "Build the image for the nodes' architecture."),
    ],
)
def test_an_image_that_cannot_start_the_launcher_gets_the_key_that_helps(report: str, fix: str) -> None:
    found = first(of_held("RunContainerError", f"failed to create task: {report}"))
    assert (found.subject, fix in found.hint) == (Cause.START, True), found.hint
    ended = first(of_failed(1, report)) if "format" in report else found
    assert fix in ended.hint


def test_an_image_without_torch_or_the_launcher_gets_the_key_that_helps() -> None:
    torch = first(of_failed(1, "ModuleNotFoundError: No module named 'torch'"))
    assert "The image has no torch for this interpreter" in torch.hint
    launcher = first(of_failed(1, "/usr/bin/python3: No module named ddp_trainer"))
    assert "mount it with --runtime-image" in launcher.hint


def test_the_image_of_a_volume_that_cannot_be_pulled_is_named_and_not_that_of_the_container() -> None:
    known = of_held("ImagePullBackOff", 'Back-off pulling image "runtime:1": ErrImagePull: not found')
    assert "The image 'runtime:1' cannot be got" in first(known).message
