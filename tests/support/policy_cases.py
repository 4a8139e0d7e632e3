"""Pods that the platform's admission policies refuse or admit: one table, for a CEL evaluator and for the API server.

A case changes a pod that breaks no rule. It is tried in every kind of object that makes pods.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.support.helm import CHARTS, HOW, helms

Json = dict[str, Any]

DIGEST: Final = f"example.com/ddp@sha256:{'0' * 64}"
TOKEN: Final = "token"
MAIN: Final = "main"


def a_container(name: str) -> Json:
    """One that breaks no rule, at Pod Security ``restricted``."""
    return {
        "name": name,
        "image": DIGEST,
        "resources": {"limits": {"memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def a_spec() -> Json:
    """Pods that break no rule."""
    return {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [a_container("first")],
        "containers": [a_container(MAIN), a_container("beside")],
        "volumes": [{"name": "kept", "emptyDir": {}}],
    }


@dataclass(frozen=True, slots=True)
class Case:
    """One change of a pod's spec, and the fields that a rule then names; none when it lets the pod in."""

    rule: str
    """Key of the chart's ``policies``."""
    name: str
    change: Callable[[Json], object]
    fields: tuple[str, ...] = ()
    """Below the pod's spec."""
    in_pods: bool = True
    """True if a Pod is refused as well, False if only a template is."""
    needs_more: bool = False
    """True if an API server requires further fields with these, or a feature that may be off."""

    @property
    def spec(self) -> Json:
        """The pod's spec after the change."""
        changed = deepcopy(a_spec())
        self.change(changed)
        return changed


def _container(number: int, **fields: Any) -> Callable[[Json], object]:
    return lambda spec: spec["containers"][number].update(fields)


def _volume(**source: Any) -> Callable[[Json], object]:
    return lambda spec: spec["volumes"].append({"name": "more", **source})


def _secured(number: int, **fields: Any) -> Callable[[Json], object]:
    return _container(number, securityContext=fields)


def _first(**fields: Any) -> Callable[[Json], object]:
    return lambda spec: spec["initContainers"][0].update(fields)


def _spec(**fields: Any) -> Callable[[Json], object]:
    return lambda spec: spec.update(fields)


def _token(**details: Any) -> Callable[[Json], object]:
    return _volume(
        projected={"sources": [{"configMap": {"name": "a"}}, {"serviceAccountToken": {"path": TOKEN, **details}}]}
    )


def _limit_of_the_pod(spec: Json) -> None:
    spec["resources"] = {"limits": {"memory": "1Gi"}}
    for item in (*spec["containers"], *spec["initContainers"]):
        del item["resources"]


_OF_A_TOKEN: Final = "volumes[more].projected"
_API_SERVER: Final = "https://kubernetes.default.svc"
_CHANGES: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "hostPath": {
        "nothing-wrong": (lambda _: None,),
        "no-volumes": (lambda spec: spec.pop("volumes"),),
        "host-path": (_volume(hostPath={"path": "/etc"}), "volumes[more].hostPath"),
        "two-host-paths": (
            lambda spec: spec["volumes"].extend({"name": n, "hostPath": {"path": "/"}} for n in ("a", "b")),
            *("volumes[a].hostPath", "volumes[b].hostPath"),
        ),
    },
    "hostNamespaces": {
        **{field: (_spec(**{field: True}), field) for field in ("hostNetwork", "hostPID", "hostIPC")},
        "host-port": (
            _container(0, ports=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]),
            "containers[main].ports.hostPort",
        ),
        "port-of-the-pod": (_container(0, ports=[{"containerPort": 80}]),),
        "host-network-false": (_spec(hostNetwork=False),),
    },
    "privileged": {
        "privileged": (_secured(1, privileged=True), "containers[beside].securityContext.privileged"),
        "privileged-at-first": (
            _first(securityContext={"privileged": True}),
            "initContainers[first].securityContext.privileged",
        ),
        "privileged-false": (_secured(0, privileged=False),),
        "host-process": (
            _spec(securityContext={"windowsOptions": {"hostProcess": True}}),
            "securityContext.windowsOptions.hostProcess",
        ),
        "host-process-of-a-container": (
            _secured(1, windowsOptions={"hostProcess": True}),
            "containers[beside].securityContext.windowsOptions.hostProcess",
        ),
        "unmasked-proc": (_secured(0, procMount="Unmasked"), "containers[main].securityContext.procMount"),
        "capabilities": (
            _secured(0, capabilities={"add": ["SYS_ADMIN", "CHOWN", "NET_ADMIN"]}),
            "containers[main].securityContext.capabilities.add SYS_ADMIN NET_ADMIN",
        ),
        "capabilities-of-the-pod-alone": (_secured(0, capabilities={"add": ["IPC_LOCK", "SYS_PTRACE"]}),),
        "no-security-context": (lambda spec: spec["containers"][0].pop("securityContext"),),
    },
    "memoryLimit": {
        "no-resources": (
            lambda spec: spec["containers"][0].pop("resources"),
            "containers[main].resources.limits.memory",
        ),
        "requests-alone": (
            _container(1, resources={"requests": {"memory": "1Gi"}}),
            "containers[beside].resources.limits.memory",
        ),
        "another-limit": (_first(resources={"limits": {"cpu": "1"}}), "initContainers[first].resources.limits.memory"),
        "limit-of-the-pod": (_limit_of_the_pod,),
    },
    "apiToken": {
        "automount-unsaid": (lambda spec: spec.pop("automountServiceAccountToken"), "automountServiceAccountToken"),
        "automount": (_spec(automountServiceAccountToken=True), "automountServiceAccountToken"),
        "token": (_token(), _OF_A_TOKEN),
        "token-for-the-api-server-by-name": (_token(audience=f"{_API_SERVER}.cluster.local"), _OF_A_TOKEN),
        "token-for-the-api-server-by-its-short-name": (_token(audience=_API_SERVER), _OF_A_TOKEN),
        "token-without-a-name": (_token(audience=""), _OF_A_TOKEN),
        "token-whose-audience-begins-like-the-api-servers": (_token(audience=f"{_API_SERVER}.example.com"),),
        "token-of-a-cloud": (_token(audience="sts.example.com"),),
        "other-projection": (_volume(projected={"sources": [{"configMap": {"name": "a"}}]}),),
    },
    "imageDigest": {
        "tag": (_container(0, image="example.com/ddp:1"), "containers[main].image 'example.com/ddp:1'"),
        "digest-cut-short": (_first(image=DIGEST[:-1]), f"initContainers[first].image '{DIGEST[:-1]}'"),
        "image-volume-by-tag": (
            _volume(image={"reference": "example.com/data:1"}),
            "volumes[more].image 'example.com/data:1'",
        ),
        "image-volume": (_volume(image={"reference": DIGEST}),),
        "tag-and-digest": (_container(0, image=DIGEST.replace("@", ":1@")),),
    },
}
"""Rule → name of a case → its change, and the fields that are named."""
_NOT_IN_PODS: Final = {"automount-unsaid", "automount"}
_NEED_MORE: Final = {
    *("host-process", "host-process-of-a-container", "unmasked-proc"),
    *("image-volume-by-tag", "image-volume"),
}
CASES: Final = tuple(
    Case(rule, name, change, tuple(fields), in_pods=name not in _NOT_IN_PODS, needs_more=name in _NEED_MORE)
    for rule, changes in _CHANGES.items()
    for name, (change, *fields) in changes.items()
)
"""Cases of every rule: refused, and just inside the rule."""

RULES: Final = tuple(dict.fromkeys(case.rule for case in CASES))

WORKLOAD_PATCH: Final = "workloadPatch"
NETWORK_POLICY: Final = "networkPolicy"
OTHER_RULES: Final = (NETWORK_POLICY, WORKLOAD_PATCH)
"""Rules that are not about pods."""

MAY_UPDATE: Final = "update workloads.kueue.x-k8s.io"


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of a Workload, and the fields that the policy names; none if it admits the change."""

    name: str
    change: Json
    """Merge patch."""
    fields: tuple[str, ...] = ()


PATCHES: Final = (
    Patch("suspend", {"spec": {"active": False}}),
    Patch("suspend-with-uid", {"metadata": {"uid": "UID"}, "spec": {"active": False}}),
    Patch("priority", {"spec": {"priority": 1_000_000}}, ("spec.priority",)),
    Patch("no-priority", {"spec": {"priority": None}}, ("spec.priority",)),
    Patch("queue", {"spec": {"queueName": "theirs"}}, ("spec.queueName",)),
    Patch("time", {"spec": {"active": False, "maximumExecutionTimeSeconds": 9}}, ("spec.maximumExecutionTimeSeconds",)),
    Patch(
        "priority-boost",
        {"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "1000"}}},
        ("metadata.annotations",),
    ),
    Patch(
        "labels",
        {"metadata": {"labels": {"team": "theirs"}}, "spec": {"priority": 7}},
        ("metadata.labels", "spec.priority"),
    ),
    Patch("no-labels", {"metadata": {"labels": None}}, ("metadata.labels",)),
)
"""Changes of :func:`a_workload`."""


def a_workload(name: str) -> Json:
    """Return a Workload of no job, for an unknown queue."""
    pods = {
        "name": "main",
        "count": 1,
        "template": {"spec": {"restartPolicy": "Never", "containers": [a_container(MAIN)]}},
    }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "labels": {"team": "ours"}},
        "spec": {"active": True, "priority": 0, "queueName": "none", "podSets": [pods]},
    }


def _pod(spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def _job(spec: Json) -> Json:
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": {"spec": spec}}}


def _cron_job(spec: Json) -> Json:
    job = {"schedule": "0 0 31 2 *", "jobTemplate": {"spec": _job(spec)["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "spec": job}


def _pytorch_job(spec: Json) -> Json:
    worker = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}
    job = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": job}


def _job_set(spec: Json) -> Json:
    jobs = [{"name": "node", "replicas": 1, "template": {"spec": {"template": {"spec": spec}}}}]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"suspend": True, "replicatedJobs": jobs},
    }


def _runtime(spec: Json) -> Json:
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"metadata": {"labels": labels}, "spec": {"template": {"spec": spec}}}
    jobs = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": jobs},
    }


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object that makes pods."""

    plural: str
    at: str
    """Path of the pod's spec."""
    make: Callable[[Json], Json]
    main: str = MAIN
    """Name that its operator demands of the first container."""

    def of(self, case: Case) -> Json:
        """The object of a case, named after it."""
        spec = case.spec
        spec["containers"][0]["name"] = self.main
        made = self.make(spec)
        made.setdefault("metadata", {})["name"] = case.name.lower()
        return made

    def fields(self, case: Case) -> tuple[str, ...]:
        """Return the fields that the refusal names."""
        if self.plural == "pods" and not case.in_pods:
            return ()
        return tuple(f"{self.at}.{field}".replace(f"[{MAIN}]", f"[{self.main}]") for field in case.fields)


_OF_A_JOB: Final = "template.spec.template.spec"
KINDS: Final = (
    Kind("pods", "spec", _pod),
    Kind("jobs", "spec.template.spec", _job),
    Kind("cronjobs", "spec.jobTemplate.spec.template.spec", _cron_job),
    Kind("pytorchjobs", "spec.pytorchReplicaSpecs.Worker.template.spec", _pytorch_job, main="pytorch"),
    Kind("jobsets", f"spec.replicatedJobs[node].{_OF_A_JOB}", _job_set),
    Kind("trainingruntimes", f"spec.template.spec.replicatedJobs[node].{_OF_A_JOB}", _runtime, main="node"),
)


@functools.cache
def _rendered(namespace: str, actions: tuple[tuple[str, str], ...], more: str) -> tuple[Json, ...]:
    if not helms():
        pytest.skip(HOW)
    values = {
        "namespaces": [{"name": namespace}],
        "test": {"enabled": False},  # its image has no digest
        **json.loads(more),
    }
    values["policies"] = dict(actions) | values.get("policies", {})
    found = helms()[max(helms())].template(CHARTS / "ddp-platform", values)
    return tuple(item for item in found if item["kind"].startswith("ValidatingAdmissionPolicy"))


def policies(
    namespace: str = "training", *, otherwise: str = "Deny", more: Json | None = None, **actions: str
) -> list[Json]:
    """The policies and bindings that the chart renders for a namespace.

    Args:
        namespace: of the jobs.
        otherwise: action of the rules that ``actions`` does not list.
        more: further values of the chart.
        **actions: rule → ``Deny``, ``Warn``, ``Audit`` or ``Off``; rules that are not about pods are off by default.
    """
    report = dict.fromkeys(OTHER_RULES, "Off") | dict.fromkeys(RULES, otherwise) | actions
    return deepcopy(list(_rendered(namespace, tuple(report.items()), json.dumps(more or {}))))


def name_of(rule: str) -> str:
    """Return the name of the rule's policy.

    >>> name_of("hostPath")
    'ddp-host-path'
    """
    return "ddp-" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in rule)
