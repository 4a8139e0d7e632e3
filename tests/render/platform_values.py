"""Effect of each value of ddp-platform, a row per key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.support.chart_values import ABSENT, Row, put, rows_of

PROMETHEUS: Final = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
KUEUE: Final = ("kueue.x-k8s.io/v1beta2/ClusterQueue",)
TEST: Final = "Job/ddp-helm-test"
TEST_POD: Final = f"{TEST} spec.template.spec"
NODES: Final = {"pool": "a"}
TAINT: Final = [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
TOLERATION: Final = {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}
AMOUNT: Final = {"requests.cpu": 8}
TWO: Final = [{"name": "vision"}, {"name": "speech"}]


def _namespace(**more: Any) -> dict[str, Any]:
    return {"namespaces": [{"name": "vision", **more}]}


_TAKEN: Final = "tolerations.0"
DIGEST: Final = f"sha256:{'a' * 64}"
TOLERATIONS: Final = tuple((f"{_TAKEN}.{key}", value, f".{_TAKEN}.{key}") for key, value in TOLERATION.items())

IMAGES: Final = (
    *rows_of(
        "image.",
        f"{TEST_POD}.containers.0.",
        ("registry", "example.com:5000", "image", "example.com:5000/ddp-trainer:0.1.0"),
        ("repository", "team/trainer", "image", "team/trainer:0.1.0"),
        ("tag", "2", "image", "ddp-trainer:2"),
        ("pullPolicy", "Always", "imagePullPolicy"),
    ),
    Row("image.digest", DIGEST, f"{TEST_POD}.containers.0.image", f"ddp-trainer@{DIGEST}"),
    Row("imagePullSecrets", ["registry"], f"{TEST_POD}.imagePullSecrets", [{"name": "registry"}]),
)
COMMON: Final = rows_of(
    "common",
    "Namespace/training metadata.",
    ("Labels", {"team": "ml"}, "labels.team", "ml"),
    ("Annotations", {"owner": "ml"}, "annotations.owner", "ml"),
)
_VISION: Final = "Namespace/vision metadata."
_QUOTA: Final = "ResourceQuota/ddp-quota spec.hard"
_PRIVILEGED: Final = _namespace(podSecurity="privileged")
_TEN_PODS: Final = {**_namespace(), "quota": {"enabled": True, "hard": {**AMOUNT, "pods": 10}}}
NAMESPACES: Final = (
    Row("namespaces.0.name", "vision", "Namespace/vision", "there"),
    Row("namespaces.0.create", False, "Namespace/vision", ABSENT, given=_namespace()),
    *rows_of(
        "namespaces.0.",
        _VISION,
        ("keep", False, "annotations.helm\\.sh/resource-policy", ABSENT),
        ("podSecurity", "baseline", "labels.pod-security\\.kubernetes\\.io/enforce"),
        ("labels", {"a": "b"}, "labels.a", "b"),
        ("annotations", {"a": "b"}, "annotations.a", "b"),
        given=_namespace(),
    ),
    Row("namespaces.0.rdma", True, f"{_VISION}labels.ddp\\.dev/rdma", "true", given=_PRIVILEGED),
    Row("namespaces.0.quota", {"requests.cpu": 16}, _QUOTA, {"requests.cpu": "16", "pods": "10"}, given=_TEN_PODS),
)


def _preset(summary: str = "Big.", source: str = "", **changes: Any) -> str:
    """The text of the preset ``big`` in its ConfigMap."""
    setting = {"value": 8, "reason": "a node has eight"} | ({"source": source} if source else {}) | changes
    lines = "".join(f"    {key}: {setting[key]}\n" for key in sorted(setting))
    return f"settings:\n  gpus:\n{lines}summary: {summary}\n"


PRESETS: Final = rows_of(
    "presets.big.",
    "ConfigMap/ddp-presets data.big",
    ("summary", "Bigger.", "", _preset("Bigger.")),
    ("settings.gpus.value", 4, "", _preset(value=4)),
    ("settings.gpus.reason", "so", "", _preset(reason="so")),
    ("settings.gpus.source", "wiki", "", _preset(source="wiki")),
    given={"presets": {"big": {"summary": "Big.", "settings": {"gpus": {"value": 8, "reason": "a node has eight"}}}}},
)
_STORAGE: Final = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
_DNS: Final = {
    "ipBlock": {"cidr": "192.0.2.53/32"},
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}},
    "podSelector": {"matchLabels": {"app": "dns"}},
}
NETWORK: Final = (
    Row("networkPolicy.enabled", False, "NetworkPolicy/ddp-default", ABSENT),
    Row("networkPolicy.egress", "closed", "NetworkPolicy/ddp-default spec.policyTypes", ["Ingress", "Egress"]),
    *rows_of(
        "networkPolicy.",
        "NetworkPolicy/ddp-default spec.egress.",
        *((f"dns.0.{key}", value, f"0.to.0.{key}") for key, value in _DNS.items()),
        ("egressTo", [_STORAGE], "2", _STORAGE),
        *((f"egressTo.0.{key}", value, f"2.{key}") for key, value in _STORAGE.items()),
        given={"networkPolicy": {"egress": "closed"}},
    ),
)
_ENFORCED: Final = {**_namespace(quota={"requests.cpu": 16}), "quota": {"enabled": True}}
_LIMITS: Final = {"limitRange": {"enabled": True, "max": {"cpu": 64}}}
LIMITS: Final = (
    Row("quota.enabled", True, "ResourceQuota/ddp-quota", "there", given={"quota": {"hard": AMOUNT}}),
    Row("quota.hard", {"pods": 5}, _QUOTA, {"pods": "5", "requests.cpu": "16"}, given=_ENFORCED),
    Row("limitRange.enabled", True, "LimitRange/ddp-limits", "there", given={"limitRange": {"max": {"cpu": 64}}}),
    *rows_of(
        "limitRange.",
        "LimitRange/ddp-limits spec.limits.0.",
        *((bound, {"memory": "2Gi"}, bound) for bound in ("min", "defaultRequest", "default")),
        ("max", {"cpu": 8}, "max", {"cpu": "8"}),
        given=_LIMITS,
    ),
)
_OTHER_CLASS: Final = {"priorityClasses": [{"value": 5, "name": "other"}]}
PRIORITIES: Final = (
    Row("priorityClasses.0.name", "mine", "PriorityClass/mine", "there", given=_OTHER_CLASS),
    *rows_of(
        "priorityClasses.0.",
        "PriorityClass/mine ",
        ("value", 1_000_000_000, "value"),
        ("preemptionPolicy", "PreemptLowerPriority", "preemptionPolicy"),
        ("globalDefault", True, "globalDefault"),
        ("description", "Why.", "description"),
        given={"priorityClasses": [{"name": "mine", "value": 5}]},
    ),
)
_PULL: Final = {"prePull": {"enabled": True}}
_PULLER: Final = "DaemonSet/ddp-pre-pull"
PRE_PULL: Final = (
    Row("prePull.enabled", True, f"{_PULLER} spec.template.spec.containers.0.image", "ddp-trainer:0.1.0"),
    Row("prePull.namespace", "speech", f"{_PULLER} metadata.namespace", "speech", given=_PULL | {"namespaces": TWO}),
    *rows_of(
        "prePull.",
        f"{_PULLER} spec.template.spec",
        ("images", ["example.com/a:1", "example.com/b:2"], ".containers.1.image", "example.com/b:2"),
        ("nodeSelector", NODES, ".nodeSelector"),
        ("priorityClassName", "ddp-low", ".priorityClassName"),
        *TOLERATIONS,
        given=_PULL,
    ),
)


def _cpus(nominal: int) -> dict[str, Any]:
    """Quota of a flavor for CPUs."""
    return {"name": "a100", "resources": {"cpu": {"nominal": nominal}}}


WITH_QUEUES: Final = {
    "namespaces": TWO,
    "queues": {
        "enabled": True,
        "flavors": [{"name": "a100", "nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}], "tolerations": TAINT}],
        "clusterQueues": [{"name": "team", "cohort": "all", "flavors": [_cpus(8)]}],
        "localQueues": [{"name": "small", "namespace": "vision", "clusterQueue": "team"}],
    },
}
_OFF: Final = put(WITH_QUEUES, "queues.enabled", value=False)
_FLAVORS_ALONE: Final = put(put(WITH_QUEUES, "queues.clusterQueues", []), "queues.localQueues", [])
_TWO_FLAVORS: Final = put(WITH_QUEUES, "queues.flavors.1", {"name": "h100"})
_TWO_QUEUES: Final = put(WITH_QUEUES, "queues.clusterQueues.1", {"name": "other", "flavors": [_cpus(1)]})
_NO_LOCAL: Final = put(WITH_QUEUES, "queues.localQueues", [])
_FLAVORS: Final = "resourceGroups.0.flavors"
_TEAM, _SMALL = "ClusterQueue/team", "LocalQueue/small"
_QUEUES: Final = (
    Row("queues.enabled", True, "LocalQueue/small", "there", given=_OFF),
    Row("queues.flavors.0.name", "h100", "ResourceFlavor/h100", "there", given=_FLAVORS_ALONE),
    *rows_of(
        "queues.flavors.0.",
        "ResourceFlavor/a100 spec",
        ("nodeLabels", NODES, ".nodeLabels"),
        ("topologyName", "racks", ".topologyName"),
        ("nodeTaints.0.key", "tpu", ".nodeTaints.0.key"),
        ("nodeTaints.0.value", "yes", ".nodeTaints.0.value"),
        ("nodeTaints.0.effect", "NoExecute", ".nodeTaints.0.effect"),
        *TOLERATIONS,
        given=WITH_QUEUES,
    ),
    Row("queues.clusterQueues.0.name", "others", "ClusterQueue/others", "there", given=_NO_LOCAL),
    *rows_of(
        "queues.clusterQueues.0.",
        f"{_TEAM} spec.",
        ("cohort", "few", "cohortName"),
        ("strategy", "StrictFIFO", "queueingStrategy"),
        ("preemption.withinClusterQueue", "LowerPriority", "preemption.withinClusterQueue"),
        ("preemption.reclaimWithinCohort", "Any", "preemption.reclaimWithinCohort"),
        ("flavors.0.resources.cpu.nominal", 16, f"{_FLAVORS}.0.resources.0.nominalQuota", "16"),
        ("flavors.0.resources.cpu.borrow", "500m", f"{_FLAVORS}.0.resources.0.borrowingLimit"),
        ("flavors.0.resources.cpu.lend", 0, f"{_FLAVORS}.0.resources.0.lendingLimit", "0"),
        given=WITH_QUEUES,
    ),
    Row("queues.clusterQueues.0.flavors.0.name", "h100", f"{_TEAM} spec.{_FLAVORS}.0.name", "h100", given=_TWO_FLAVORS),
    Row("queues.localQueues.0.name", "large", "LocalQueue/large", "there", given=WITH_QUEUES),
    Row("queues.localQueues.0.namespace", "speech", f"{_SMALL} metadata.namespace", "speech", given=WITH_QUEUES),
    Row("queues.localQueues.0.clusterQueue", "other", f"{_SMALL} spec.clusterQueue", "other", given=_TWO_QUEUES),
)
QUEUES: Final = tuple(replace(row, serves=KUEUE) for row in _QUEUES)
_MONITOR: Final = "PodMonitor/ddp-workers"
_RUNBOOK: Final = "annotations.runbook_url"
_INPUT_BOUND: Final = 'ddp_job_phase:ddp_step_phase_seconds:ratio5m{phase="data_wait"}'
_DASHBOARD: Final = "ConfigMap/ddp-dashboard-sample"
_JOBS: Final = "https://example.com/g/d/ddp-job?var-namespace={{ $labels.namespace }}&var-ddp_job={{ $labels.ddp_job }}"
MONITORING: Final = (
    Row("monitoring.enabled", False, _MONITOR, ABSENT, serves=PROMETHEUS),
    Row("monitoring.podMonitor.enabled", False, _MONITOR, ABSENT, serves=PROMETHEUS),
    Row("monitoring.rules.enabled", False, "PrometheusRule/ddp-sample", ABSENT, serves=PROMETHEUS),
    *rows_of(
        "monitoring.",
        _MONITOR,
        ("labels", {"release": "p"}, " metadata.labels.release", "p"),
        ("podMonitor.interval", "1m", " spec.podMetricsEndpoints.0.interval"),
        ("podMonitor.scrapeTimeout", "15s", " spec.podMetricsEndpoints.0.scrapeTimeout"),
        serves=PROMETHEUS,
    ),
    *rows_of(
        "monitoring.",
        "PrometheusRule/ddp-progress spec.groups.0.rules.",
        ("rules.runbooks", "https://example.com/r/", f"2.{_RUNBOOK}", "https://example.com/r/DdpTrainingStalled.md"),
        ("rules.alertLabels", {"team": "ml"}, "2.labels.team", "ml"),
        ("rules.alerts.DdpTrainingStalled.enabled", False, "2.alert", "DdpRankBehindCollective"),
        ("rules.alerts.DdpTrainingStalled.for", "7m", "2.for"),
        ("rules.alerts.DdpTrainingStalled.severity", "info", "2.labels.severity"),
        ("rules.alerts.DdpInputBound.threshold", 0.35, "8.expr", f"{_INPUT_BOUND} > 0.35"),
        ("dashboards.url", "https://example.com/g/", "2.annotations.dashboard_url", _JOBS),
        serves=PROMETHEUS,
    ),
    Row("monitoring.dashboards.enabled", False, _DASHBOARD, ABSENT),
    *rows_of(
        "monitoring.dashboards.",
        f"{_DASHBOARD} metadata.",
        ("namespace", "grafana", "namespace"),
        ("labels", {"seen": "1"}, "labels.seen", "1"),
        ("annotations", {"folder": "ML"}, "annotations.folder", "ML"),
    ),
)
HELM_TEST: Final = (
    Row("test.enabled", False, TEST, ABSENT),
    Row("test.namespace", "speech", f"{TEST} metadata.namespace", "speech", given={"namespaces": TWO}),
    Row("test.isolation", False, f"{TEST} spec.completions", 2),
    Row("test.timeoutSeconds", 60, f"{TEST} spec.activeDeadlineSeconds", 60),
    *rows_of(
        "test.",
        TEST_POD,
        ("resources.cpu", 1, ".containers.0.resources.limits.cpu"),
        ("resources.memory", "1Gi", ".containers.0.resources.requests.memory"),
        ("nodeSelector", NODES, ".nodeSelector"),
        *TOLERATIONS,
    ),
)
ROWS: Final = (
    *(*COMMON, *IMAGES, *NAMESPACES, *PRESETS, *NETWORK, *LIMITS),
    *(*PRIORITIES, *PRE_PULL, *QUEUES, *MONITORING, *HELM_TEST),
)
