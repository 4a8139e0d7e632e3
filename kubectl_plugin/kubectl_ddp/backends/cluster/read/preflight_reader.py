"""Concurrent reading of the facts for the checks of a job, limited to those that the job requires.

A fact that may not be read, or that the cluster does not have, is replaced by a sentence. All other problems are
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import yaml

from ddp_trainer.common.constants import Annotation, Label, Role
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed, PolicyDenied
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read import cluster_info
from kubectl_ddp.backends.cluster.read.cluster_info import passes_scheduling_group
from kubectl_ddp.backends.cluster.read.resource_table import objects
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, RelatedKind
from kubectl_ddp.preflight import model as of
from kubectl_ddp.preflight.controllers import CONTROLLER_SELECTOR
from kubectl_ddp.preflight.model import PreflightFacts, Subject, Unknown
from kubectl_ddp.preflight.namespace_checks import pull_secrets
from kubectl_ddp.rbac.rights import Right
from kubectl_ddp.spec.rules import is_kueue_managed
from kubectl_ddp.util.concurrency import map_in_threads, run_in_threads
from kubectl_ddp.values.program import Gang

KUEUE: Final = "kueue.x-k8s.io"
VISIBILITY: Final = "visibility.kueue.x-k8s.io"
KUEUE_CONFIG: Final = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
AUTOSCALER: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
AUTOSCALER_GROUPS: Final = ("karpenter.sh", "cluster-autoscaler.kubernetes.io", "autoscaling.x-k8s.io")
"""API groups of autoscalers."""
NODE_POOLS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "oci.oraclecloud.com/oke-cluster-id",
)
"""Labels of machines in node pools, which the provider may scale up."""
NO_RIGHT: Final = "cannot create resource"
UNKNOWN_FIELD: Final = "strict decoding error"
"""Words of a refusal of a field that the server does not know, such as a mistyped one of a podTemplate."""
NO_DRY_RUN: Final = "dry run"
REPORTED_ELSEWHERE: Final = ("exceeded quota", "no PriorityClass with name")
"""Rejections that other checks report in more detail."""

_CHECK: Final = "-check"
"""End of the name of a pod in a dry run."""
_PODS: Final = "Its pods"
_STORE_POD: Final = "The pod of its store"

Question = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PreflightReader:
    """Reader of the facts about a cluster for one job."""

    api: Api
    discovery: Discovery
    subject: Subject
    objects: Sequence[Object]
    is_thorough: bool
    """True to read NetworkPolicies and dry-run every object too. False for ``submit``, which creates them anyway."""

    def facts(self) -> PreflightFacts:
        """Return all facts. Raises NotFound if the namespace does not exist, and other errors of the requests."""
        queries = self._queries()
        facts = dict(zip(queries, run_in_threads(*queries.values()), strict=True))
        facts["grows"] = self._can_scale_up(facts.pop("autoscaler"), facts["nodes"])
        self._add_pull_secrets(facts)
        if lacking := facts["rights"]:
            facts["rights_hint"] = cluster_info.role_request_message(
                self.api, self.discovery, self.subject.namespace, lacking
            )
        return PreflightFacts(**facts, has_kueue=bool(self.discovery.served_versions(KUEUE)))

    def _queries(self) -> dict[str, Question]:
        subject, spec = self.subject, self.subject.spec
        account = self._in("v1", "serviceaccounts", spec.service_account or "default")
        found: dict[str, Question] = {
            "nodes": unknown_if_forbidden(partial(objects, self.api, RelatedKind.NODES, None)),
            "autoscaler": unknown_if_forbidden(partial(self._get, AUTOSCALER)),
            "controller": self._controller_pods,
            "quotas": unknown_if_forbidden(partial(objects, self.api, RelatedKind.QUOTAS, subject.namespace)),
            "account": unknown_if_forbidden(partial(self._get, account)),
            "rights": self._missing_permissions,
            "refused": self._collect_dry_run_errors,
            "claims": unknown_if_forbidden(lambda: self._named("persistentvolumeclaims", of.claims(subject))),
            "secrets": unknown_if_forbidden(lambda: self._entries("secrets", of.secrets(subject))),
            "config_maps": unknown_if_forbidden(lambda: self._entries("configmaps", of.config_maps(subject))),
        }
        if self.is_thorough:
            found["policies"] = unknown_if_forbidden(
                partial(objects, self.api, RelatedKind.POLICIES, subject.namespace)
            )
        if spec.gang is Gang.NATIVE:
            found["has_scheduling_group"] = partial(passes_scheduling_group, self.api, ENGINES[spec.engine])
        if spec.priority is not None:
            found["priority"] = unknown_if_forbidden(
                partial(self._get, f"/apis/scheduling.k8s.io/v1/priorityclasses/{spec.priority}")
            )
        return found | (self._queue_queries() if is_kueue_managed(spec) else {})

    def _queue_queries(self) -> dict[str, Question]:
        if not (versions := self.discovery.served_versions(KUEUE)):
            return {"local_queues": list}
        group = f"{KUEUE}/{versions[0]}"
        queries: dict[str, Question] = {}
        if (name := self.subject.spec.queue_priority) is not None:
            path = f"{collection(group, 'workloadpriorityclasses', None)}/{name}"
            queries["queue_priority"] = unknown_if_forbidden(partial(self._get, path))
        return queries | {
            "local_queues": unknown_if_forbidden(
                partial(objects, self.api, RelatedKind.LOCAL_QUEUES, self.subject.namespace)
            ),
            "pending": unknown_if_forbidden(self._pending),
            "frameworks": unknown_if_forbidden(self._frameworks),
        }

    def _in(self, group: str, plural: str, name: str = "") -> str:
        return collection(group, plural, self.subject.namespace) + (f"/{name}" if name else "")

    def _get(self, path: str) -> Object | None:
        """Return an object; ``None`` if it does not exist."""
        try:
            return self.api.get(path)
        except NotFound:
            return None

    def _named(self, plural: str, names: Iterable[str]) -> dict[str, Object | None]:
        wanted = list(names)
        return dict(
            zip(wanted, map_in_threads(lambda name: self._get(self._in("v1", plural, name)), wanted), strict=True)
        )

    def _entries(self, plural: str, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Return the names of the entries. The contents of Secrets are dropped immediately."""
        found = self._named(plural, names)
        return {name: None if item is None else _keys(item) for name, item in found.items()}

    def _add_pull_secrets(self, facts: dict[str, Any]) -> None:
        account, known = facts["account"], facts["secrets"]
        if not isinstance(account, Unknown) and not isinstance(known, Unknown):
            more = [name for name in pull_secrets(account) if name not in known]
            found = unknown_if_forbidden(lambda: self._entries("secrets", more))() if more else {}
            facts["secrets"] = found if isinstance(found, Unknown) else {**known, **found}

    def _can_scale_up(self, autoscaler: Object | Unknown | None, nodes: Sequence[Object] | Unknown) -> bool:
        """Return whether machines may be added.

        If the autoscaler's status is unreadable, machines in a cloud's node pool are assumed to be scalable.
        """
        if autoscaler is not None and not isinstance(autoscaler, Unknown):
            return True
        if any(self.discovery.served_versions(group) for group in AUTOSCALER_GROUPS):
            return True
        if autoscaler is None or isinstance(nodes, Unknown):
            return False
        return any(label in (node["metadata"].get("labels") or {}) for node in nodes for label in NODE_POOLS)

    def _controller_pods(self) -> list[Object] | Unknown:
        """Return the controller's pods. Without the right to list pods of all namespaces, the check is left out."""
        try:
            return objects(self.api, RelatedKind.OPERATOR, None, CONTROLLER_SELECTOR)
        except Forbidden:
            return Unknown()

    def _pending(self) -> list[Object] | Unknown:
        versions = self.discovery.served_versions(VISIBILITY)
        if not versions:
            return Unknown("Kueue's visibility API is not served, so who else waits is not known.")
        path = self._in(f"{VISIBILITY}/{versions[0]}", "localqueues", f"{self.subject.spec.queue}/pendingworkloads")
        return (self._get(path) or {}).get("items") or []

    def _frameworks(self) -> frozenset[str] | Unknown:
        data = (self._get(KUEUE_CONFIG) or {}).get("data") or {}
        try:
            config = yaml.safe_load(next(iter(data.values()), ""))
        except yaml.YAMLError:
            config = None
        integrations = config.get("integrations") if isinstance(config, dict) else None
        named = integrations.get("frameworks") if isinstance(integrations, dict) else None
        return (
            frozenset(map(str, named))
            if isinstance(named, list) and named
            else Unknown("Kueue's configuration is not where it is by default.")
        )

    def _missing_permissions(self) -> list[Right]:
        job = self.api, self.discovery, self.subject.namespace, self.objects
        lacking = cluster_info.missing_to_submit(*job)
        return [] if lacking and cluster_info.may_submit_ddpjob(*job) else lacking

    def _collect_dry_run_errors(self) -> dict[str, str] | Unknown:
        """Dry-run the pods, and if thorough every object; return the reasons of rejections."""
        pods = (("worker", self.subject.worker), ("store", self.subject.store))
        items = [_pod(self.subject, role, template) for role, template in pods if template]
        answers = map_in_threads(self._dry_run_error, items + (self._dry_run_objects() if self.is_thorough else []))
        if self.subject.store and answers[1] and answers[1] == str(answers[0]).replace(_PODS, _STORE_POD):
            answers[1] = ""  # one reason for both
        if unread := [answer for answer in answers if isinstance(answer, Unknown)]:
            return unread[0]
        return {str(number): str(answer) for number, answer in enumerate(answers) if answer}

    def _dry_run_objects(self) -> list[Object]:
        """Return the objects of served kinds, without those that are rejected before another one exists."""
        return [
            item
            for item in self.objects
            if self.discovery.resource_for_object(item) and not job_kinds.has_dependency(item, self.objects)
        ]

    def _dry_run_error(self, item: Object) -> str | Unknown:
        """Return the reason for which an object would be rejected; empty if accepted. Raises NotFound for the
        namespace.
        """
        path = self._in(item["apiVersion"], self.discovery.resource_for_object(item) or "pods")
        try:
            self.api.create(path, item, dryRun="All")
        except AlreadyExists:
            name, space = item["metadata"]["name"], self.subject.namespace
            taken = f"There is another {item['kind']} '{name}' in namespace '{space}' already; choose another --name."
            return "" if self._is_of_same_job(f"{path}/{name}", item) else taken
        except NotFound:
            raise
        except PolicyDenied as refusal:
            return f"{_describe(item)} would be refused by the policy '{refusal.policy}': {refusal.policy_message}."
        except DdpError as refusal:
            if NO_RIGHT in refusal.message:
                return Unknown("You may not create pods, so whether their admission would refuse them is not known.")
            if NO_DRY_RUN in refusal.message:
                return Unknown(f"A webhook of the cluster takes no dry runs: {refusal.message}")
            if not isinstance(refusal, Forbidden | UsageError) and UNKNOWN_FIELD not in refusal.message:
                raise
            return self._rejection_summary(item, path, refusal.message)
        return ""

    def _rejection_summary(self, item: Object, path: str, refusal: str) -> str:
        """Shorten a rejection; empty if another check reports it, or if the object exists and is not created again."""
        if "exceeded quota" in refusal and item["kind"] != "Pod":  # object-count quotas have no check of their own
            return "" if self._is_of_same_job(f"{path}/{item['metadata']['name']}", item) else _in_short(item, refusal)
        return "" if any(words in refusal for words in REPORTED_ELSEWHERE) else _in_short(item, refusal)

    def _is_of_same_job(self, path: str, item: Object) -> bool:
        """Return whether the existing object of this name belongs to this very job."""
        existing = (self._get(path) or {"metadata": {}})["metadata"]
        digests = [(entry.get("annotations") or {}).get(Annotation.DIGEST) for entry in (existing, item["metadata"])]
        return (existing.get("labels") or {}).get(Label.JOB) == self.subject.spec.name and digests[0] == digests[1]


def _pod(subject: Subject, role: str, template: Mapping[str, Any]) -> Object:
    metadata = {**template["metadata"], "name": f"{subject.spec.name}-{role}{_CHECK}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _in_short(item: Object, refusal: str) -> str:
    """Return the message of the plugin or webhook. It is the same for pods that differ only in their name."""
    _, found, reason = refusal.partition(" is forbidden: ")
    return f"{_describe(item)} would be refused: {reason}" if found else refusal


def _describe(item: Object) -> str:
    name = item["metadata"]["name"]
    if item["kind"] != "Pod":
        return f"The {item['kind']} '{name}'"
    return _STORE_POD if name.endswith(f"-{Role.STORE}{_CHECK}") else _PODS


def _keys(item: Object) -> frozenset[str]:
    return frozenset({**(item.get("data") or {}), **(item.get("binaryData") or {})})


def unknown_if_forbidden(question: Question) -> Question:
    """Wrap a function so that it returns Unknown instead of raising Forbidden or NotServed."""

    def result_or_unknown() -> Any:
        try:
            return question()
        except (Forbidden, NotServed) as refusal:
            return Unknown(refusal.message)

    return result_or_unknown
