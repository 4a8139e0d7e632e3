"""Properties of a cluster, read concurrently: optional features and the user's rights. Unreadable parts are ``None``.

Feature gates cannot be read without the rights of an administrator, and versions do not tell them. So each feature is
detected by its API: a served kind, a field of a schema, a dry run, or the configuration of its controller. Nothing is
created.

One request reads the user's rights in a namespace. A separate request per right follows for other namespaces, and for
authorizers that cannot list their rules, such as those of some clouds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

import yaml

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.jobs import without_managers
from kubectl_ddp.backends.cluster.read.resource_table import objects
from kubectl_ddp.engines import ENGINES, EngineKind
from kubectl_ddp.errors import DdpError, NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind, holds
from kubectl_ddp.preflight.controllers import CONTROLLER_SELECTOR
from kubectl_ddp.preflight.doctor import CONFIGURED_GATES, RESTART_ACTIONS, ClusterFacts, ClusterFeatures
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.resources import parse_nodes
from kubectl_ddp.rbac import rights
from kubectl_ddp.rbac.rights import EVERYWHERE, KINDS, OWN, Right, permissions_to_check, to_submit
from kubectl_ddp.render.choose import GANG_KINDS
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.util.bounded_response import API_DOCUMENT
from kubectl_ddp.util.concurrency import Future, map_in_threads, run_in_threads
from kubectl_ddp.values.program import Gang

AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
USER_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def missing_to_submit(api: Api, discovery: Discovery, namespace: str, objects: Sequence[Object]) -> list[Right]:
    """Return the missing rights for creating the objects of a job."""
    engine = job_kinds.engine_of(job_kinds.root_of(list(objects)))
    return missing_rights(api, namespace, to_submit(engine.name, discovery.group_resources(objects)))


def may_submit_ddpjob(api: Api, discovery: Discovery, namespace: str, objects: Sequence[Object]) -> bool:
    """Return whether the user may create, read and delete the job as one DDPJob; false where that is not served."""
    if discovery.resource_for_kind(job_kinds.API_VERSION, job_kinds.KIND) is None:
        return False
    has_code = any(item["kind"] == "ConfigMap" for item in objects)
    made = [f"{job_kinds.PLURAL}.{GROUP}", *(["configmaps"] if has_code else [])]
    verbs = ("create", "get", "delete")
    return not missing_rights(api, namespace, [Right.of(verb, kind) for kind in made for verb in verbs])


def missing_rights(api: Api, namespace: str, wanted: Sequence[Right]) -> list[Right]:
    """Return the rights in ``wanted`` that the API server does not grant. Raises the errors of
    :class:`~kubectl_ddp.backends.cluster.http.api.Api`.
    """
    review = api.create(f"{AUTHORIZATION}/selfsubjectrulesreviews", _review("RulesReview", {"namespace": namespace}))
    rules = review["status"].get("resourceRules") or ()
    lacking = {right for right in wanted if right.where == OWN and not any(_rule_allows(rule, right) for rule in rules)}
    is_complete = not review["status"].get("incomplete")
    open_ = [right for right in wanted if right.where != OWN or (right in lacking and not is_complete)]
    allowed = map_in_threads(lambda right: _may(api, namespace, right), open_)
    granted = {right for right, may in zip(open_, allowed, strict=True) if may}
    return [right for right in wanted if right not in granted and (right in lacking or right.where != OWN)]


def _review(kind: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": f"SelfSubject{kind}", "spec": dict(spec)}


def _rule_allows(rule: Mapping[str, Any], right: Right) -> bool:
    if rule.get("resourceNames"):
        return False
    plural, slash, subresource = right.resource.partition("/")
    resources = {right.resource, "*", f"*/{subresource}" if slash else plural}
    required = (("verbs", {right.verb, "*"}), ("apiGroups", {right.group, "*"}), ("resources", resources))
    return all(words & set(rule.get(field) or ()) for field, words in required)


def _may(api: Api, namespace: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "namespace": {OWN: namespace, EVERYWHERE: ""}.get(right.where, right.where),
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.names[0] if right.names else "",
    }
    spec = {"resourceAttributes": {name: value for name, value in attributes.items() if value}}
    answer = api.create(f"{AUTHORIZATION}/selfsubjectaccessreviews", _review("AccessReview", spec))
    return bool(answer["status"].get("allowed"))


def user_name(api: Api) -> str:
    """Return the name of the user on the API server; empty if it does not report it."""
    try:
        answer = api.create(USER_REVIEWS, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    except DdpError:  # not available before Kubernetes 1.28
        return ""
    return str(answer["status"]["userInfo"].get("username", ""))


def role_request_message(api: Api, discovery: Discovery, namespace: str, lacking: Collection[Right]) -> str:
    """Return a sentence that requests the missing rights, with the Role as YAML below it.

    The Role includes the right by which ranks are read, because a job is submitted with or without it.
    """
    to_request = [*lacking]
    with contextlib.suppress(DdpError):
        to_request += [] if _may(api, namespace, rights.API_SERVERS) else [rights.API_SERVERS]
    found = rights.required_roles(to_request, discovery.filter_served(KINDS), namespace=namespace, user=user_name(api))
    return f"Ask a cluster administrator to grant this with 'kubectl apply -f -':\n{rights.text(found)}".rstrip()


SCHEDULING_GROUP: Final = '"schedulingGroup"'
"""Field of a pod that names its PodGroup, as the OpenAPI schema of a kind with pods has it."""
GIVEN_CODE: Final = 129
"""Exit code in the restart rule of the dry run; its value does not matter."""


def passes_scheduling_group(api: Api, engine: EngineKind) -> bool | Unknown:
    """Return whether the pods of an engine keep ``spec.schedulingGroup``. CRDs drop fields that they do not know."""
    try:
        return SCHEDULING_GROUP in api.text(f"/openapi/v3/apis/{engine.api_version}", limits=API_DOCUMENT)
    except DdpError as error:
        return Unknown(
            f"Whether pods of the engine {engine.name} can be in a native gang is not known: {error.message}"
        )


def detect_features(api: Api, discovery: Discovery, namespace: str, engines: list[str]) -> ClusterFeatures:
    """Return the optional features of a cluster that serves ``engines``."""
    gangs = _served_gangs(discovery)
    candidates = [ENGINES[name] for name in engines] if Gang.NATIVE in gangs else []
    actions, gates = run_in_threads(partial(_restart_actions, api, namespace), partial(_configured_gates, api))
    passed = map_in_threads(partial(passes_scheduling_group, api), candidates)
    native = [engine.name for engine, passes in zip(candidates, passed, strict=True) if passes is True]
    return ClusterFeatures(gangs=gangs, native_engines=native, restart_actions=actions, gates=gates)


def _served_gangs(discovery: Discovery) -> dict[Gang, str]:
    """Return gang scheduler → served version of the kind that identifies it, in order of preference."""
    found: dict[Gang, str] = {}
    for gang, (version, kind) in GANG_KINDS:
        if gang not in found and discovery.resource_for_kind(version, kind) is not None:
            found[gang] = version
    return found


def _restart_actions(api: Api, namespace: str) -> list[str] | None:
    """Return the actions of container restart rules that the API server stores, by dry runs of a Job; ``None`` if it
    takes no dry run.
    """
    found = []
    for action in RESTART_ACTIONS:
        try:
            stored = api.create(
                collection("batch/v1", "jobs", namespace), _job_with(action), dryRun="All", fieldValidation="Ignore"
            )
        except UsageError:  # an unknown action is invalid
            continue
        except DdpError:
            return None
        [container] = stored["spec"]["template"]["spec"]["containers"]
        found += [action] if container.get("restartPolicyRules") else []  # a field whose gate is off is dropped
    return found


def _job_with(action: str) -> dict[str, Any]:
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [GIVEN_CODE]}}
    container = {"name": "check", "image": "check", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ddp-doctor-check"},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def _configured_gates(api: Api) -> dict[str, bool | None]:
    """Return feature gate → its value in its controller's configuration, ``None`` if unset; without unreadable ones."""
    found: dict[str, bool | None] = {}
    for gate, config_map in CONFIGURED_GATES.items():
        try:
            data = api.get(config_map).get("data") or {}
            config = yaml.safe_load(next(iter(data.values()), ""))
        except (DdpError, yaml.YAMLError):
            continue
        gates = config.get("featureGates") if isinstance(config, Mapping) else None
        found[gate] = gates.get(gate) if isinstance(gates, Mapping) else None
    return found


T = TypeVar("T")


def inspect_cluster(api: Api, namespace: str) -> ClusterFacts:
    """Return the properties of the cluster. Raises the error of reading the API server's version."""
    version = str(api.get("/version").get("gitVersion", ""))
    groups = {
        str(group["name"]): str(group["preferredVersion"]["version"]) for group in api.get("/apis").get("groups") or ()
    }
    discovery = Discovery(api)
    engines = _served_engine_names(discovery)
    served = discovery.filter_served(KINDS)
    operators = (*(ENGINES[name].operator for name in engines), KUEUE)
    selectors = {CONTROLLER_SELECTOR, *(operator.selector for operator in operators if operator.selector)}
    with ExitStack() as stack:

        def submit(read: Callable[[], T]) -> Future[T]:
            return stack.enter_context(Future(read))

        pods = {
            selector: submit(_none_on_error(partial(objects, api, RelatedKind.OPERATOR, None, selector)))
            for selector in selectors
        }
        space = submit(partial(_namespace, api, namespace))
        nodes = submit(_none_on_error(partial(objects, api, RelatedKind.NODES, None)))
        daemons = submit(_none_on_error(partial(_daemonset_names, api)))
        user = submit(partial(user_name, api))
        queues = submit(_none_on_error(partial(objects, api, RelatedKind.LOCAL_QUEUES, namespace)))
        features = submit(partial(detect_features, api, discovery, namespace, engines))
        missing = submit(_none_on_error(partial(missing_rights, api, namespace, permissions_to_check(served))))
    has_namespace, labels = space.result()
    machines = nodes.result()
    return ClusterFacts(
        where=api.connection.where,
        server=api.connection.server,
        namespace=namespace,
        version=version,
        user=user.result(),
        groups=groups,
        engines=engines,
        local_queues=_names(queues.result()),
        features=features.result(),
        served=served,
        labels=labels,
        has_namespace=has_namespace,
        operators={selector: answer.result() for selector, answer in pods.items()},
        daemons=daemons.result(),
        nodes=_ready(machines),
        gpus=_gpus(machines),
        missing=missing.result(),
    )


def _served_engine_names(discovery: Discovery) -> list[str]:
    """Return the engines whose kinds are served. The API group is not enough, as kubeflow.org also has other kinds."""
    return [
        name
        for name, engine in ENGINES.items()
        if discovery.resource_for_kind(engine.api_version, engine.kind) is not None
    ]


def _none_on_error(read: Callable[[], T]) -> Callable[[], T | None]:
    """Wrap a function so that it returns ``None`` instead of raising DdpError."""

    def read_or_none() -> T | None:
        try:
            return read()
        except DdpError:
            return None

    return read_or_none


def _names(items: Sequence[Object] | None) -> list[str] | None:
    return None if items is None else [str(item["metadata"]["name"]) for item in items]


def _daemonset_names(api: Api) -> list[str]:
    found, _ = api.items(collection("apps/v1", "daemonsets", None), reduce=without_managers)
    return [str(daemonset["metadata"]["name"]) for daemonset in found]


def _namespace(api: Api, namespace: str) -> tuple[bool, dict[str, str] | None]:
    try:
        return True, dict(api.get(f"/api/v1/namespaces/{namespace}")["metadata"].get("labels") or {})
    except NotFound:
        return False, None
    except DdpError:
        return True, None


def _ready(nodes: Sequence[Object] | None) -> int | None:
    return None if nodes is None else sum(holds(node, "Ready") for node in nodes)


def _gpus(nodes: Sequence[Object] | None) -> int | None:
    return None if nodes is None else sum(machine.allocatable.get(GPU, 0) for machine in parse_nodes(nodes)) // 1000
