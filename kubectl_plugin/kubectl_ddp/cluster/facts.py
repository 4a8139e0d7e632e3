"""Reads what the checks have to know: every question at the same time, and only those that the job raises.

What one may not read, or the cluster does not have, is a sentence in the place of the fact. Whatever else goes wrong is
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import yaml

from ddp_trainer.common.constants import Annotation, Label
from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.checks import subject as of
from kubectl_ddp.checks.model import Facts, Subject, Unread
from kubectl_ddp.checks.needs import pull_secrets
from kubectl_ddp.cluster import granted
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.refusals import AgainstPolicy, NotServed
from kubectl_ddp.cluster.remains import BEFORE_ROOT
from kubectl_ddp.cluster.resources import Discovery, collection
from kubectl_ddp.cluster.sources import few_objects, objects
from kubectl_ddp.errors import DdpError, Forbidden, NameTaken, NotFound, UsageError
from kubectl_ddp.parallel import each, together
from kubectl_ddp.rights.model import Right
from kubectl_ddp.spec.queues import is_kueues
from kubectl_ddp.surroundings import Around

KUEUE: Final = "kueue.x-k8s.io"
VISIBILITY: Final = "visibility.kueue.x-k8s.io"
KUEUE_CONFIG: Final = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
AUTOSCALER: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
GROWERS: Final = ("karpenter.sh", "cluster-autoscaler.kubernetes.io", "autoscaling.x-k8s.io")
"""API groups of those who add machines."""
NODE_POOLS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "oci.oraclecloud.com/oke-cluster-id",
)
"""Labels of machines whose provider may add more."""
NO_RIGHT: Final = "cannot create resource"
NO_DRY_RUN: Final = "dry run"
SAID_ELSEWHERE: Final = ("exceeded quota", "no PriorityClass with name")
"""What other checks say, with more to it."""

Question = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One job, and the cluster that is asked about it."""

    api: Api
    discovery: Discovery
    subject: Subject
    objects: Sequence[Object]
    is_thorough: bool
    """Read whatever there is, and have every object checked. Without, what ``submit`` has time for."""

    def facts(self) -> Facts:
        """All of it. Raises NotFound when there is no such namespace, and what no answer is."""
        asked = self._questions()
        facts = dict(zip(asked, together(*asked.values()), strict=True))
        facts["grows"] = self._grows(facts.pop("autoscaler"), facts["nodes"])
        self._add_pull_secrets(facts)
        if lacking := facts["rights"]:
            facts["rights_hint"] = granted.to_ask_for(self.api, self.discovery, self.subject.namespace, lacking)
        return Facts(**facts, has_kueue=bool(self.discovery.serves(KUEUE)))

    def _questions(self) -> dict[str, Question]:
        subject, spec = self.subject, self.subject.spec
        account = self._in("v1", "serviceaccounts", "default")
        found: dict[str, Question] = {
            "nodes": softly(partial(objects, self.api, Around.NODES, None)),
            "pods": softly(self._pods),
            "autoscaler": softly(partial(self._get, AUTOSCALER)),
            "quotas": softly(partial(objects, self.api, Around.QUOTAS, subject.namespace)),
            "account": softly(partial(self._get, account)),
            "rights": self._rights,
            "refused": self._refused,
            "claims": softly(lambda: self._named("persistentvolumeclaims", of.claims(subject))),
            "secrets": softly(lambda: self._entries("secrets", of.secrets(subject))),
            "config_maps": softly(lambda: self._entries("configmaps", of.config_maps(subject))),
        }
        if spec.priority is not None:
            found["priority"] = softly(
                partial(self._get, f"/apis/scheduling.k8s.io/v1/priorityclasses/{spec.priority}")
            )
        return found | (self._about_the_queue() if is_kueues(spec) else {})

    def _about_the_queue(self) -> dict[str, Question]:
        if not (versions := self.discovery.serves(KUEUE)):
            return {"local_queues": list}
        group = f"{KUEUE}/{versions[0]}"
        about: dict[str, Question] = {}
        if (name := self.subject.spec.queue_priority) is not None:
            path = f"{collection(group, 'workloadpriorityclasses', None)}/{name}"
            about["queue_priority"] = softly(partial(self._get, path))
        return about | {
            "local_queues": softly(partial(objects, self.api, Around.LOCAL_QUEUES, self.subject.namespace)),
            "cluster_queues": softly(partial(objects, self.api, Around.CLUSTER_QUEUES, None)),
            "pending": softly(self._pending),
            "frameworks": softly(self._frameworks),
        }

    def _in(self, group: str, plural: str, name: str = "") -> str:
        return collection(group, plural, self.subject.namespace) + (f"/{name}" if name else "")

    def _get(self, path: str) -> Object | None:
        """An object; ``None`` when there is none."""
        try:
            return self.api.get(path)
        except NotFound:
            return None

    def _pods(self) -> list[Object] | Unread:
        """Of all namespaces; in a hurry those of a cluster that has few."""
        if self.is_thorough:
            return objects(self.api, Around.BOUND, None)
        few = few_objects(self.api, Around.BOUND)
        return Unread() if few is None else few

    def _named(self, plural: str, names: Iterable[str]) -> dict[str, Object | None]:
        wanted = list(names)
        return dict(zip(wanted, each(lambda name: self._get(self._in("v1", plural, name)), wanted), strict=True))

    def _entries(self, plural: str, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Names of entries alone: what a Secret holds goes nowhere."""
        found = self._named(plural, names)
        return {name: None if item is None else _keys(item) for name, item in found.items()}

    def _add_pull_secrets(self, facts: dict[str, Any]) -> None:
        account, known = facts["account"], facts["secrets"]
        if not isinstance(account, Unread) and not isinstance(known, Unread):
            more = [name for name in pull_secrets(account) if name not in known]
            found = softly(lambda: self._entries("secrets", more))() if more else {}
            facts["secrets"] = found if isinstance(found, Unread) else {**known, **found}

    def _grows(self, autoscaler: Object | Unread | None, nodes: Sequence[Object] | Unread) -> bool:
        """Whether machines may be added; where nobody may look, those of a cloud's pools are thought to be."""
        if autoscaler is not None and not isinstance(autoscaler, Unread):
            return True
        if any(self.discovery.serves(group) for group in GROWERS):
            return True
        if autoscaler is None or isinstance(nodes, Unread):
            return False
        return any(label in (node["metadata"].get("labels") or {}) for node in nodes for label in NODE_POOLS)

    def _pending(self) -> list[Object] | Unread:
        versions = self.discovery.serves(VISIBILITY)
        if not versions:
            return Unread("Kueue's visibility API is not served, so who else waits is not known.")
        path = self._in(f"{VISIBILITY}/{versions[0]}", "localqueues", f"{self.subject.spec.queue}/pendingworkloads")
        return (self._get(path) or {}).get("items") or []

    def _frameworks(self) -> frozenset[str] | Unread:
        config = (self._get(KUEUE_CONFIG) or {}).get("data") or {}
        try:
            told = yaml.safe_load(next(iter(config.values()), ""))
        except yaml.YAMLError:
            told = None
        integrations = told.get("integrations") if isinstance(told, dict) else None
        named = integrations.get("frameworks") if isinstance(integrations, dict) else None
        return (
            frozenset(map(str, named))
            if isinstance(named, list) and named
            else Unread("Kueue's configuration is not where it is by default.")
        )

    def _rights(self) -> list[Right]:
        return granted.missing_to_submit(self.api, self.discovery, self.subject.namespace, self.objects)

    def _refused(self) -> dict[str, str] | Unread:
        """What a dry run of the pods is refused for; with time, that of every object too."""
        pods = (("worker", self.subject.worker), ("store", self.subject.store))
        items = [_pod(self.subject, role, template) for role, template in pods]
        answers = each(self._would_be_taken, items + (self._checkable() if self.is_thorough else []))
        if unread := [answer for answer in answers if isinstance(answer, Unread)]:
            return unread[0]
        return {str(number): str(answer) for number, answer in enumerate(answers) if answer}

    def _checkable(self) -> list[Object]:
        """The objects of kinds that are served; not a TrainJob, which is refused before its runtime is there."""
        kinds = {item["kind"] for item in self.objects}
        return [
            item
            for item in self.objects
            if self.discovery.plural(item) and not (kinds & BEFORE_ROOT.keys() and roots.kind_of(item))
        ]

    def _would_be_taken(self, item: Object) -> str | Unread:
        """Why an object would be refused; empty when it would be taken. Raises NotFound for the namespace."""
        path = self._in(item["apiVersion"], self.discovery.plural(item) or "pods")
        try:
            self.api.create(path, item, dryRun="All")
        except NameTaken:
            name, space = item["metadata"]["name"], self.subject.namespace
            taken = f"There is another {item['kind']} '{name}' in namespace '{space}' already; choose another --name."
            return "" if self._is_ours(f"{path}/{name}", item) else taken
        except NotFound:
            raise
        except AgainstPolicy as refusal:
            return f"{_what(item)} would be refused by the policy '{refusal.policy}': {refusal.said}."
        except DdpError as refusal:
            if NO_RIGHT in refusal.message:
                return Unread("You may not create pods, so whether their admission would refuse them is not known.")
            if NO_DRY_RUN in refusal.message:
                return Unread(f"A webhook of the cluster takes no dry runs: {refusal.message}")
            if not isinstance(refusal, Forbidden | UsageError):
                raise
            return self._worth_saying(item, path, refusal.message)
        return ""

    def _worth_saying(self, item: Object, path: str, refusal: str) -> str:
        """A refusal in short; empty where another check says it, or the object is there already and is not made."""
        if "exceeded quota" in refusal and item["kind"] != "Pod":  # of numbers of objects no other check knows
            return "" if self._is_ours(f"{path}/{item['metadata']['name']}", item) else _in_short(item, refusal)
        return "" if any(words in refusal for words in SAID_ELSEWHERE) else _in_short(item, refusal)

    def _is_ours(self, path: str, item: Object) -> bool:
        """Whether what has the name is this very job, or comes with it."""
        about = (self._get(path) or {"metadata": {}})["metadata"]
        digests = [(each.get("annotations") or {}).get(Annotation.DIGEST) for each in (about, item["metadata"])]
        return (about.get("labels") or {}).get(Label.JOB) == self.subject.spec.name and digests[0] == digests[1]


def _pod(subject: Subject, role: str, template: Mapping[str, Any]) -> Object:
    metadata = {**template["metadata"], "name": f"{subject.spec.name}-{role}-check"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _in_short(item: Object, refusal: str) -> str:
    """The plugin's or the webhook's own words, of which pods that differ in name alone have the same."""
    _, found, said = refusal.partition(" is forbidden: ")
    return f"{_what(item)} would be refused: {said}" if found else refusal


def _what(item: Object) -> str:
    return "Its pods" if item["kind"] == "Pod" else f"The {item['kind']} '{item['metadata']['name']}'"


def _keys(item: Object) -> frozenset[str]:
    return frozenset({**(item.get("data") or {}), **(item.get("binaryData") or {})})


def softly(question: Question) -> Question:
    """The answer, or why there is none."""

    def asked() -> Any:
        try:
            return question()
        except (Forbidden, NotServed) as refusal:
            return Unread(refusal.message)

    return asked
