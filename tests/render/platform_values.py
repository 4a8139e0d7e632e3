"""What each value of ddp-platform changes, a row per key."""

from __future__ import annotations

from typing import Any, Final

from tests.support.chart_values import ABSENT, Row, put

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


IMAGES: Final = (
    Row("image.registry", "example.com:5000", f"{TEST_POD}.containers.0.image", "example.com:5000/ddp-trainer:0.1.0"),
    Row("image.repository", "team/trainer", f"{TEST_POD}.containers.0.image", "team/trainer:0.1.0"),
    Row("image.tag", "2", f"{TEST_POD}.containers.0.image", "ddp-trainer:2"),
    Row(
        "image.digest",
        f"sha256:{'a' * 64}",
        f"{TEST_POD}.containers.0.image",
        f"ddp-trainer@sha256:{'a' * 64}",
        given={"image": {"tag": "2"}},
    ),
    Row("image.pullPolicy", "Always", f"{TEST_POD}.containers.0.imagePullPolicy", "Always"),
    Row("imagePullSecrets", ["registry"], f"{TEST_POD}.imagePullSecrets", [{"name": "registry"}]),
)
COMMON: Final = (
    Row("commonLabels", {"team": "ml"}, "Namespace/training metadata.labels.team", "ml"),
    Row("commonAnnotations", {"owner": "ml"}, "Namespace/training metadata.annotations.owner", "ml"),
)
NAMESPACES: Final = (
    Row("namespaces.0.name", "vision", "Namespace/vision", "there"),
    Row("namespaces.0.create", False, "Namespace/vision", ABSENT, given=_namespace()),
    Row(
        "namespaces.0.keep",
        False,
        "Namespace/vision metadata.annotations.helm\\.sh/resource-policy",
        ABSENT,
        given=_namespace(),
    ),
    Row(
        "namespaces.0.podSecurity",
        "baseline",
        "Namespace/vision metadata.labels.pod-security\\.kubernetes\\.io/enforce",
        "baseline",
        given=_namespace(),
    ),
    Row(
        "namespaces.0.rdma",
        True,
        "Namespace/vision metadata.labels.ddp\\.dev/rdma",
        "true",
        given=_namespace(podSecurity="privileged"),
    ),
    Row("namespaces.0.labels", {"a": "b"}, "Namespace/vision metadata.labels.a", "b", given=_namespace()),
    Row("namespaces.0.annotations", {"a": "b"}, "Namespace/vision metadata.annotations.a", "b", given=_namespace()),
    Row(
        "namespaces.0.quota",
        {"requests.cpu": 16},
        "ResourceQuota/ddp-quota spec.hard",
        {"requests.cpu": "16", "pods": "10"},
        given={**_namespace(), "quota": {"enabled": True, "hard": {**AMOUNT, "pods": 10}}},
    ),
)
_SETTING: Final = {"value": 8, "reason": "a node has eight"}
_PRESET: Final = {"presets": {"big": {"summary": "Big.", "settings": {"gpus": _SETTING}}}}
PRESETS: Final = (
    Row(
        "presets.big.summary",
        "Bigger.",
        "ConfigMap/ddp-presets data.big",
        "settings:\n  gpus:\n    reason: a node has eight\n    value: 8\nsummary: Bigger.\n",
        given=_PRESET,
    ),
    Row(
        "presets.big.settings.gpus.value",
        4,
        "ConfigMap/ddp-presets data.big",
        "settings:\n  gpus:\n    reason: a node has eight\n    value: 4\nsummary: Big.\n",
        given=_PRESET,
    ),
    Row(
        "presets.big.settings.gpus.reason",
        "so",
        "ConfigMap/ddp-presets data.big",
        "settings:\n  gpus:\n    reason: so\n    value: 8\nsummary: Big.\n",
        given=_PRESET,
    ),
    Row(
        "presets.big.settings.gpus.source",
        "wiki",
        "ConfigMap/ddp-presets data.big",
        "settings:\n  gpus:\n    reason: a node has eight\n    source: wiki\n    value: 8\nsummary: Big.\n",
        given=_PRESET,
    ),
)
_CLOSED: Final = {"networkPolicy": {"egress": "closed"}}
_STORAGE: Final = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
_DNS: Final = {
    "ipBlock": {"cidr": "192.0.2.53/32"},
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}},
    "podSelector": {"matchLabels": {"app": "dns"}},
}
NETWORK: Final = (
    Row("networkPolicy.enabled", False, "NetworkPolicy/ddp-default", ABSENT),
    Row(
        "networkPolicy.egress",
        "closed",
        "NetworkPolicy/ddp-default spec.policyTypes",
        ["Ingress", "Egress"],
    ),
    *(
        Row(
            f"networkPolicy.dns.0.{field}",
            about,
            f"NetworkPolicy/ddp-default spec.egress.0.to.0.{field}",
            about,
            given=_CLOSED,
        )
        for field, about in _DNS.items()
    ),
    Row("networkPolicy.egressTo", [_STORAGE], "NetworkPolicy/ddp-default spec.egress.2", _STORAGE, given=_CLOSED),
    Row(
        "networkPolicy.egressTo.0.to",
        _STORAGE["to"],
        "NetworkPolicy/ddp-default spec.egress.2.to",
        _STORAGE["to"],
        given=_CLOSED,
    ),
    Row(
        "networkPolicy.egressTo.0.ports",
        _STORAGE["ports"],
        "NetworkPolicy/ddp-default spec.egress.2.ports",
        _STORAGE["ports"],
        given=_CLOSED,
    ),
)
_LIMITS: Final = {"limitRange": {"enabled": True, "max": {"cpu": 64}}}
LIMITS: Final = (
    Row("quota.enabled", True, "ResourceQuota/ddp-quota", "there", given={"quota": {"hard": AMOUNT}}),
    Row(
        "quota.hard",
        {"pods": 5},
        "ResourceQuota/ddp-quota spec.hard",
        {"pods": "5", "requests.cpu": "16"},
        given={**_namespace(quota={"requests.cpu": 16}), "quota": {"enabled": True}},
    ),
    Row("limitRange.enabled", True, "LimitRange/ddp-limits", "there", given={"limitRange": {"max": {"cpu": 64}}}),
    *(
        Row(
            f"limitRange.{bound}",
            {"memory": "2Gi"},
            f"LimitRange/ddp-limits spec.limits.0.{bound}",
            {"memory": "2Gi"},
            given=_LIMITS,
        )
        for bound in ("min", "defaultRequest", "default")
    ),
    Row("limitRange.max", {"cpu": 8}, "LimitRange/ddp-limits spec.limits.0.max", {"cpu": "8"}, given=_LIMITS),
)
_CLASS: Final = {"priorityClasses": [{"name": "mine", "value": 5}]}
PRIORITIES: Final = (
    Row(
        "priorityClasses.0.name",
        "mine",
        "PriorityClass/mine",
        "there",
        given={"priorityClasses": [{"value": 5, "name": "other"}]},
    ),
    Row("priorityClasses.0.value", 1_000_000_000, "PriorityClass/mine value", 1_000_000_000, given=_CLASS),
    Row(
        "priorityClasses.0.preemptionPolicy",
        "PreemptLowerPriority",
        "PriorityClass/mine preemptionPolicy",
        "PreemptLowerPriority",
        given=_CLASS,
    ),
    Row("priorityClasses.0.globalDefault", True, "PriorityClass/mine globalDefault", True, given=_CLASS),
    Row("priorityClasses.0.description", "Why.", "PriorityClass/mine description", "Why.", given=_CLASS),
)
_PULL: Final = {"prePull": {"enabled": True}}
_PULLER: Final = "DaemonSet/ddp-pre-pull"
PRE_PULL: Final = (
    Row("prePull.enabled", True, f"{_PULLER} spec.template.spec.containers.0.image", "ddp-trainer:0.1.0"),
    Row(
        "prePull.namespace",
        "speech",
        f"{_PULLER} metadata.namespace",
        "speech",
        given={**_PULL, "namespaces": TWO},
    ),
    Row(
        "prePull.images",
        ["example.com/a:1", "example.com/b:2"],
        f"{_PULLER} spec.template.spec.containers.1.image",
        "example.com/b:2",
        given=_PULL,
    ),
    Row("prePull.nodeSelector", NODES, f"{_PULLER} spec.template.spec.nodeSelector", NODES, given=_PULL),
    *(
        Row(
            f"prePull.tolerations.0.{name}",
            value,
            f"{_PULLER} spec.template.spec.tolerations.0.{name}",
            value,
            given=_PULL,
        )
        for name, value in TOLERATION.items()
    ),
    Row(
        "prePull.priorityClassName",
        "ddp-low",
        f"{_PULLER} spec.template.spec.priorityClassName",
        "ddp-low",
        given=_PULL,
    ),
)


WITH_QUEUES: Final = {
    "namespaces": TWO,
    "queues": {
        "enabled": True,
        "flavors": [{"name": "a100", "nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}], "tolerations": TAINT}],
        "clusterQueues": [
            {"name": "team", "cohort": "all", "flavors": [{"name": "a100", "resources": {"cpu": {"nominal": 8}}}]}
        ],
        "localQueues": [{"name": "small", "namespace": "vision", "clusterQueue": "team"}],
    },
}
_OFF: Final = put(WITH_QUEUES, "queues.enabled", value=False)
_FLAVORS_ALONE: Final = put(put(WITH_QUEUES, "queues.clusterQueues", []), "queues.localQueues", [])
_TWO_FLAVORS: Final = put(WITH_QUEUES, "queues.flavors.1", {"name": "h100"})
_TWO_QUEUES: Final = put(
    WITH_QUEUES,
    "queues.clusterQueues.1",
    {"name": "other", "flavors": [{"name": "a100", "resources": {"cpu": {"nominal": 1}}}]},
)
_NO_LOCAL: Final = put(WITH_QUEUES, "queues.localQueues", [])
_FLAVOR: Final = "ResourceFlavor/a100 spec"
_QUEUE: Final = "ClusterQueue/team spec"
_FLAVORS: Final = f"{_QUEUE}.resourceGroups.0.flavors"
_AMOUNT: Final = f"{_FLAVORS}.0.resources.0"
QUEUES: Final = tuple(
    Row(f"queues.{key}", value, where, becomes, given=given, serves=KUEUE)
    for given, key, value, where, becomes in (
        (_OFF, "enabled", True, "LocalQueue/small", "there"),
        (_FLAVORS_ALONE, "flavors.0.name", "h100", "ResourceFlavor/h100", "there"),
        (WITH_QUEUES, "flavors.0.nodeLabels", NODES, f"{_FLAVOR}.nodeLabels", NODES),
        (WITH_QUEUES, "flavors.0.topologyName", "racks", f"{_FLAVOR}.topologyName", "racks"),
        (WITH_QUEUES, "flavors.0.nodeTaints.0.key", "tpu", f"{_FLAVOR}.nodeTaints.0.key", "tpu"),
        (WITH_QUEUES, "flavors.0.nodeTaints.0.value", "yes", f"{_FLAVOR}.nodeTaints.0.value", "yes"),
        (WITH_QUEUES, "flavors.0.nodeTaints.0.effect", "NoExecute", f"{_FLAVOR}.nodeTaints.0.effect", "NoExecute"),
        *(
            (WITH_QUEUES, f"flavors.0.tolerations.0.{name}", value, f"{_FLAVOR}.tolerations.0.{name}", value)
            for name, value in TOLERATION.items()
        ),
        (_NO_LOCAL, "clusterQueues.0.name", "others", "ClusterQueue/others", "there"),
        (WITH_QUEUES, "clusterQueues.0.cohort", "few", f"{_QUEUE}.cohortName", "few"),
        (WITH_QUEUES, "clusterQueues.0.strategy", "StrictFIFO", f"{_QUEUE}.queueingStrategy", "StrictFIFO"),
        *(
            (WITH_QUEUES, f"clusterQueues.0.preemption.{name}", value, f"{_QUEUE}.preemption.{name}", value)
            for name, value in {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}.items()
        ),
        (_TWO_FLAVORS, "clusterQueues.0.flavors.0.name", "h100", f"{_FLAVORS}.0.name", "h100"),
        *(
            (WITH_QUEUES, f"clusterQueues.0.flavors.0.resources.cpu.{name}", value, f"{_AMOUNT}.{field}", str(value))
            for name, value, field in (
                ("nominal", 16, "nominalQuota"),
                ("borrow", "500m", "borrowingLimit"),
                ("lend", 0, "lendingLimit"),
            )
        ),
        (WITH_QUEUES, "localQueues.0.name", "large", "LocalQueue/large", "there"),
        (WITH_QUEUES, "localQueues.0.namespace", "speech", "LocalQueue/small metadata.namespace", "speech"),
        (_TWO_QUEUES, "localQueues.0.clusterQueue", "other", "LocalQueue/small spec.clusterQueue", "other"),
    )
)
_MONITOR: Final = "PodMonitor/ddp-workers"
_ENDPOINT: Final = f"{_MONITOR} spec.podMetricsEndpoints.0"
_FIRST_ALERT: Final = "PrometheusRule/ddp-progress spec.groups.0.rules.2"
_RUNBOOK: Final = "annotations.runbook_url"
_INPUT_BOUND: Final = 'ddp_job_phase:ddp_step_phase_seconds:ratio5m{phase="data_wait"}'
_DASHBOARD: Final = "ConfigMap/ddp-dashboard-sample"
_JOBS: Final = "https://example.com/g/d/ddp-job?var-namespace={{ $labels.namespace }}&var-ddp_job={{ $labels.ddp_job }}"
MONITORING: Final = (
    Row("monitoring.enabled", False, _MONITOR, ABSENT, serves=PROMETHEUS),
    Row("monitoring.labels", {"release": "p"}, f"{_MONITOR} metadata.labels.release", "p", serves=PROMETHEUS),
    Row("monitoring.podMonitor.enabled", False, _MONITOR, ABSENT, serves=PROMETHEUS),
    Row("monitoring.podMonitor.interval", "1m", f"{_ENDPOINT}.interval", "1m", serves=PROMETHEUS),
    Row("monitoring.podMonitor.scrapeTimeout", "15s", f"{_ENDPOINT}.scrapeTimeout", "15s", serves=PROMETHEUS),
    Row("monitoring.rules.enabled", False, "PrometheusRule/ddp-sample", ABSENT, serves=PROMETHEUS),
    *(
        Row(f"monitoring.rules.{key}", value, f"{_FIRST_ALERT}.{field}", becomes, serves=PROMETHEUS)
        for key, value, field, becomes in (
            ("runbooks", "https://example.com/r/", _RUNBOOK, "https://example.com/r/DdpTrainingStalled.md"),
            ("alertLabels", {"team": "ml"}, "labels.team", "ml"),
            ("alerts.DdpTrainingStalled.enabled", False, "alert", "DdpRankBehindCollective"),
            ("alerts.DdpTrainingStalled.for", "7m", "for", "7m"),
            ("alerts.DdpTrainingStalled.severity", "info", "labels.severity", "info"),
        )
    ),
    Row(
        "monitoring.rules.alerts.DdpInputBound.threshold",
        0.35,
        "PrometheusRule/ddp-progress spec.groups.0.rules.8.expr",
        f"{_INPUT_BOUND} > 0.35",
        serves=PROMETHEUS,
    ),
    Row("monitoring.dashboards.enabled", False, _DASHBOARD, ABSENT),
    Row(
        "monitoring.dashboards.url",
        "https://example.com/g/",
        f"{_FIRST_ALERT}.annotations.dashboard_url",
        _JOBS,
        serves=PROMETHEUS,
    ),
    Row("monitoring.dashboards.namespace", "grafana", f"{_DASHBOARD} metadata.namespace", "grafana"),
    Row("monitoring.dashboards.labels", {"seen": "1"}, f"{_DASHBOARD} metadata.labels.seen", "1"),
    Row("monitoring.dashboards.annotations", {"folder": "ML"}, f"{_DASHBOARD} metadata.annotations.folder", "ML"),
)
_RESOURCES: Final = f"{TEST_POD}.containers.0.resources"
HELM_TEST: Final = (
    Row("test.enabled", False, TEST, ABSENT),
    Row("test.isolation", False, f"{TEST} spec.completions", 2),
    Row("test.namespace", "speech", f"{TEST} metadata.namespace", "speech", given={"namespaces": TWO}),
    Row("test.timeoutSeconds", 60, f"{TEST} spec.activeDeadlineSeconds", 60),
    Row("test.resources.cpu", 1, f"{_RESOURCES}.limits.cpu", 1),
    Row("test.resources.memory", "1Gi", f"{_RESOURCES}.requests.memory", "1Gi"),
    Row("test.nodeSelector", NODES, f"{TEST_POD}.nodeSelector", NODES),
    *(
        Row(f"test.tolerations.0.{name}", value, f"{TEST_POD}.tolerations.0.{name}", value)
        for name, value in TOLERATION.items()
    ),
)
ROWS: Final = (
    *(*COMMON, *IMAGES, *NAMESPACES, *PRESETS, *NETWORK, *LIMITS),
    *(*PRIORITIES, *PRE_PULL, *QUEUES, *MONITORING, *HELM_TEST),
)
