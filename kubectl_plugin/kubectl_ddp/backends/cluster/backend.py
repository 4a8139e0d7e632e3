"""Backend for a cluster: operations on jobs by requests to the API server, and by kubectl for terminals and tunnels.

Modules that neither ``list`` nor ``status`` need are imported by the methods that need them.

Users of a cluster have kubectl, which supports terminal sizes, raw keys, the protocols of all releases and proxies, and
all credentials. It replaces this process, so the user gets its exit code, signals and terminal directly.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ddp_trainer.common.constants import HANG_PATH, HISTORY_PATH, Label
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.backends.cluster.http.api import Api, collection, pod_path
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.http.connection import Connection, connection_to
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.jobs import (
    Jobs,
    code_of,
    ddpjobs_path,
    events_of,
    of_all,
    of_one,
    recent_events,
    strip_pod,
    without_managers,
)
from kubectl_ddp.backends.cluster.read.kueue_workloads import queue_state_lookup
from kubectl_ddp.backends.cluster.read.pod_output import served
from kubectl_ddp.backends.cluster.write.scaling import set_active, stale_annotations
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, PreflightFailed, Unreachable, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects, Snapshot, main_container
from kubectl_ddp.status.metrics_parser import metrics_path
from kubectl_ddp.status.termination_message import is_running
from kubectl_ddp.util.concurrency import Future, Stop, run_in_threads

if TYPE_CHECKING:
    from kubectl_ddp.backends.cluster.write.submission import Submission
    from kubectl_ddp.capacity import CapacityObjects
    from kubectl_ddp.kube.grafana import GrafanaService
    from kubectl_ddp.preflight.doctor import ClusterFacts
    from kubectl_ddp.preflight.model import PreflightFacts, Subject
    from kubectl_ddp.render.choose import ClusterKinds, Kind
    from kubectl_ddp.spec.external_values import SharedPresets
    from kubectl_ddp.spec.model import JobSpec
    from kubectl_ddp.values.parsers import Egress


class Kubectl:
    """Commands for kubectl, with the same cluster and namespace as this process."""

    def __init__(self, namespace: str, access: Access) -> None:
        """Use the given flags. kubectl reads all other settings from the same files as this process."""
        self._access = access.kubectl_flags
        self._namespace = namespace

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """Return a ``kubectl exec`` command. Raises PreflightFailed if kubectl is not installed."""
        flags = [flag for flag, is_set in (("--stdin", entry.stdin), ("--tty", entry.terminal)) if is_set]
        variables = [f"{name}={value}" for name, value in entry.variables.items()]
        words = [*(["env", *variables] if variables else []), *entry.words]
        return self._exec_command(
            "exec", *flags, pod["metadata"]["name"], f"--container={main_container(pod)}", "--", *words
        )

    def forward(self, pod: Object, ports: Sequence[str]) -> ExecCommand:
        """Return a ``kubectl port-forward`` command. Raises PreflightFailed if kubectl is not installed."""
        return self._exec_command("port-forward", pod["metadata"]["name"], *ports)

    def forward_service(self, namespace: str, name: str, ports: str) -> ExecCommand:
        """Return a ``kubectl port-forward`` command to a Service of any namespace. Raises PreflightFailed without
        kubectl.
        """
        return self._exec_command("port-forward", f"service/{name}", ports, namespace=namespace)

    def _exec_command(self, command: str, *words: str, namespace: str | None = None) -> ExecCommand:
        import shutil  # noqa: PLC0415 - only for commands that run kubectl

        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise PreflightFailed(
                f"{command} needs kubectl, which was not found on PATH.",
                hint="Install it: https://kubernetes.io/docs/tasks/tools/.",
            )
        flags = (*self._access, f"--namespace={namespace or self._namespace}")
        return ExecCommand(words=(kubectl, command, *flags, *words))


API_SERVERS: Final = f"{collection('discovery.k8s.io/v1', 'endpointslices', 'default')}/kubernetes"
"""EndpointSlice with the addresses from which API servers reach pods. Every cluster has the Service."""


def on_stderr(text: str) -> None:
    """Print a message that is not data to stderr."""
    print(text, file=sys.stderr, flush=True)


class ClusterBackend:
    """Cluster of a kubeconfig's context. Implements :class:`kubectl_ddp.backends.base.Backend`."""

    def __init__(
        self,
        access: Access = Access(),  # noqa: B008 - frozen
        *,
        connection: Connection | None = None,
        notice: Callable[[str], None] = on_stderr,
    ) -> None:
        """Create a backend for the jobs of one namespace.

        Args:
            access: Values of kubectl's connection flags (default: kubectl's own rules).
            connection: Connection to use instead of the one that ``access`` selects.
            notice: Called with messages for the user that are not errors.
        """
        to = connection or connection_to(access)
        self.where = to.where
        self.namespace = to.namespace
        self._api = Api(to)
        self._discovery = Discovery(self._api)
        self._kubectl = Kubectl(to.namespace, access)
        self._notice = notice
        self._jobs = Jobs(self._api, to.namespace, notice)

    # -- reading -------------------------------------------------------------------------------------------------------

    def jobs(self, *, all_namespaces: bool = False) -> list[Snapshot]:
        """Return the jobs of the namespace, or of all namespaces, oldest first, without their events."""
        namespace = None if all_namespaces else self.namespace
        path = collection("v1", "pods", namespace)
        with Future(lambda: self._api.items(path, reduce=strip_pod, labelSelector=Label.JOB)[0]) as pods:
            jobs = self._jobs.all(namespace)
            found = pods.result() if jobs else []
        return of_all(jobs, found, queue_state_lookup(self._api, jobs))

    def facts(self) -> ClusterKinds:
        """Return the properties of the cluster that affect how a job is rendered."""
        from kubectl_ddp.render.choose import ClusterKinds  # noqa: PLC0415 - 30 ms, and only to submit

        version, served = run_in_threads(lambda: self._api.get("/version"), self._served_kinds)
        major, minor = (int(re.sub(r"\D.*", "", str(version[part])) or 0) for part in ("major", "minor"))
        return ClusterKinds(self.where, (major, minor), served)

    def _served_kinds(self) -> frozenset[Kind]:
        from kubectl_ddp.render.choose import kinds_to_discover  # noqa: PLC0415 - as above

        return frozenset(kind for kind in kinds_to_discover() if self._discovery.resource_for_kind(*kind) is not None)

    def api_servers(self) -> tuple[str, ...]:
        """Return the addresses of the API servers. If they cannot be read, print a notice and return none."""
        endpoints: Sequence[Object] = ()
        with contextlib.suppress(Forbidden, NotFound, NotServed):
            endpoints = self._api.get(API_SERVERS).get("endpoints") or ()
        found = {address for endpoint in endpoints for address in endpoint["addresses"]}
        if not found:
            self._notice(
                "You may not get the EndpointSlice 'kubernetes' in namespace 'default', with the addresses of the API "
                "servers. The job's NetworkPolicy does not admit them, so 'status' and 'top' may never see its ranks. "
                "'doctor' prints the Role to request; --metrics-from ADDRESS admits an address, --metrics-from '*' all."
            )
        return tuple(sorted(found))

    def effective_egress(self, egress: Egress) -> Egress:
        """Return closed for an open job in a closed namespace. NetworkPolicies add up, so the job's would open it."""
        if egress != "open":
            return egress
        try:
            policies = collection("networking.k8s.io/v1", "networkpolicies", self.namespace)
            default = self._api.get(f"{policies}/ddp-default")
        except (Forbidden, NotFound, NotServed):
            return egress
        is_closed = "Egress" in default["spec"].get("policyTypes", ())
        return type(egress)("closed") if is_closed else egress

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        """Return one job, without its events if ``events`` is false. Raises NotFound."""
        path = collection("v1", "pods", self.namespace)
        selector = f"{Label.JOB}={name}"
        with Future(lambda: self._api.items(path, reduce=without_managers, labelSelector=selector)[0]) as pods:
            job = self._jobs.named(name)
            found = of_one(job, pods.result(), recent_events(self._api, name, self.namespace) if events else ())
            return replace(found, queued=queue_state_lookup(self._api, [job])(job))

    def watch(
        self, name: str, *, reasons: Collection[str] | None = None, stop: Stop | None = None
    ) -> Iterator[Snapshot]:
        """Yield the job now, and after each change of it, its pods or its events of these reasons (default: all).

        Ends when it is deleted or ``stop`` is requested.
        """
        from kubectl_ddp.backends.cluster.read.job_watch import watch  # noqa: PLC0415 - only for a watch

        yield from watch(self._api, self._jobs.named(name), self.namespace, reasons, stop or Stop())

    def deleted_pods(self, name: str) -> Sequence[Object]:
        """Return none: a log goes with its pod."""
        del name
        return ()

    def events(self, name: str) -> list[Object]:
        """Return the events about a job and all objects created for it, including deleted pods, oldest first."""
        return events_of(self._api, self._jobs.named(name), self._jobs.all(self.namespace))

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """Return the ``kubectl exec`` command for an entry."""
        return self._kubectl.enter(pod, entry)

    def forward(self, pod: Object, ports: Sequence[str]) -> ExecCommand:
        """Return the ``kubectl port-forward`` command for ports of a pod."""
        return self._kubectl.forward(pod, ports)

    def grafana(self) -> GrafanaService:
        """Return Grafana's Service. Raises NotFound, UsageError, Forbidden."""
        from kubectl_ddp.kube.grafana import LABEL, only_service  # noqa: PLC0415 - only for ``dashboard``

        return only_service(self._api.items(collection("v1", "services", None), labelSelector=LABEL)[0])

    def forward_service(self, service: GrafanaService, local: int | None) -> ExecCommand:
        """Return the ``kubectl port-forward`` command to a Service from a local port (default: a free one)."""
        return self._kubectl.forward_service(service.namespace, service.name, f"{local or ''}:{service.port}")

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        """Return the pod's ``/metrics``, through the API server's proxy. Raises Unreachable and Forbidden."""
        return served(self._api, pod, metrics_path(families))

    def hang(self, pod: Object) -> str:
        """Return the launcher's current view of its ranks, through the API server's proxy. Raises Unreachable,
        Forbidden.
        """
        return served(self._api, pod, HANG_PATH)

    def metrics_history(self, pod: Object) -> str | None:
        """Return the history of the pod's metrics, from its aggregator or from the end of its log."""
        from kubectl_ddp.status.metrics_parser import LAST_LINES, unpacked  # noqa: PLC0415 - only for reports

        if is_running(pod):
            with contextlib.suppress(Unreachable):  # earlier versions do not serve it
                return served(self._api, pod, HISTORY_PATH)
        with contextlib.suppress(NotFound, Unreachable):
            return unpacked(line.partition(" ")[2] for line in self._entries(pod, tail=LAST_LINES))
        return None

    def logs(
        self,
        pod: Object,
        *,
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        since: str | None = None,
        stop: Stop | None = None,
    ) -> Iterator[str]:
        """Yield the lines of the pod's container; with ``follow``, until the container ends."""
        from kubectl_ddp.status.metrics_parser import without  # noqa: PLC0415 - only for logs

        for entry in without(self._entries(pod, follow=follow, tail=tail, since=since, stop=stop)):
            yield entry if timestamps else entry.partition(" ")[2]

    def _entries(
        self,
        pod: Object,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
        stop: Stop | None = None,
    ) -> Iterator[str]:
        """Yield all lines, each prefixed with its time."""
        from kubectl_ddp.backends.cluster.read.pod_output import PodLogs  # noqa: PLC0415 - imports urllib3

        source = PodLogs(self._api, pod_path(pod), pod, stop=stop or Stop())
        return source.follow(tail=tail, since=since) if follow else source.read(tail=tail, since=since)

    def related_objects(self, job: Object, kinds: Collection[RelatedKind]) -> RelatedObjects:
        """Return objects related to a job, of the given kinds, read concurrently."""
        from kubectl_ddp.backends.cluster.read.resource_table import related_objects  # noqa: PLC0415 - only for why and bundle

        return related_objects(self._api, self.namespace, job_kinds.engine_of(job).name, kinds)

    def inspect_cluster(self) -> ClusterFacts:
        """Return the properties of the cluster and the rights of the user there."""
        from kubectl_ddp.backends.cluster.read.cluster_info import inspect_cluster  # noqa: PLC0415 - only for ``doctor``

        return inspect_cluster(self._api, self.namespace)

    # -- changing ------------------------------------------------------------------------------------------------------

    def submit(self, objects: Sequence[Object], earlier: Object | None = None) -> None:
        """Create a job. No pod starts before all objects exist. An identical existing job is left unchanged.

        Args:
            objects: Objects of the rendered job.
            earlier: DDPJob of which this is a new run.

        Raises:
            AlreadyExists: If another object has the name.
            PreflightFailed: If the cluster does not serve a kind that the job needs.
            Forbidden: If the API server denies the creation of an object.
            UsageError: If the API server rejects an object as invalid.
        """
        if self._submit_as_ddpjob(objects, earlier):
            return
        try:
            self._submission(objects).submit()
        except Forbidden as refusal:
            raise self._all_that_is_missing(objects) or refusal from refusal

    def _submit_as_ddpjob(self, objects: Sequence[Object], earlier: Object | None) -> bool:
        """Create a job as one DDPJob. Returns false where that is not served or not allowed, or no controller acts."""
        if self._discovery.resource_for_kind(job_kinds.API_VERSION, job_kinds.KIND) is None:
            return False
        from kubectl_ddp.backends.cluster.write.ddpjob_submission import DDPJobSubmission  # noqa: PLC0415 - only for submission

        root = job_kinds.root_of(list(objects))
        existing = self._find_job(str(root["metadata"]["name"]))
        if existing is not None and job_kinds.owner_of(existing) is None:
            return False  # a job of the same name without a DDPJob, perhaps this very one
        namespace = root["metadata"].get("namespace") or self.namespace
        return DDPJobSubmission(
            self._api,
            objects,
            namespace,
            may_create_objects=lambda: self._may_create(objects),
            notice=self._notice,
            earlier=earlier,
        ).submit()

    def _may_create(self, objects: Sequence[Object]) -> bool:
        """Return whether the user may create all objects of a job; false if the rights cannot be read."""
        from kubectl_ddp.backends.cluster.read import cluster_info  # noqa: PLC0415 - only without a controller

        with contextlib.suppress(DdpError):
            return not cluster_info.missing_to_submit(self._api, self._discovery, self.namespace, objects)
        return False

    def dry_run(self, objects: Sequence[Object]) -> list[Object]:
        """Return the objects as the API server would store them, without creating any. Raises the errors of
        :meth:`submit`.
        """
        return self._submission(objects).dry_run()

    def preflight(
        self, spec: JobSpec, objects: Sequence[Object], *, is_thorough: bool
    ) -> tuple[Subject, PreflightFacts]:
        """Return a job, and the facts about the cluster that determine if it can run there. Nothing is changed.

        Raises:
            NotFound: If the namespace does not exist.
        """
        from kubectl_ddp.backends.cluster.read.preflight_reader import PreflightReader  # noqa: PLC0415
        from kubectl_ddp.preflight.model import subject_of  # noqa: PLC0415 - only for submission

        subject = subject_of(spec, objects, spec.namespace or self.namespace)
        return subject, PreflightReader(self._api, self._discovery, subject, objects, is_thorough).facts()

    def capacity_objects(self) -> CapacityObjects:
        """Return machines, pods and queues, which determine free capacity, and a note for each that may not be read."""
        from kubectl_ddp.backends.cluster.read.preflight_reader import unknown_if_forbidden  # noqa: PLC0415 - only for ``capacity``
        from kubectl_ddp.backends.cluster.read.resource_table import objects  # noqa: PLC0415
        from kubectl_ddp.capacity import CapacityObjects  # noqa: PLC0415

        nodes, pods, local_queues, cluster_queues = run_in_threads(
            *(
                unknown_if_forbidden(partial(objects, self._api, kind, namespace))
                for kind, namespace in (
                    (RelatedKind.NODES, None),
                    (RelatedKind.BOUND, None),
                    (RelatedKind.LOCAL_QUEUES, self.namespace),
                    (RelatedKind.CLUSTER_QUEUES, None),
                )
            )
        )
        return CapacityObjects(
            namespace=self.namespace, nodes=nodes, pods=pods, local_queues=local_queues, cluster_queues=cluster_queues
        )

    def _all_that_is_missing(self, objects: Sequence[Object]) -> Forbidden | None:
        """Return the error with all missing rights; ``None`` if no right is missing or the rights cannot be read."""
        from kubectl_ddp.backends.cluster.read import cluster_info  # noqa: PLC0415 - only after a denied request

        with contextlib.suppress(DdpError):
            if lacking := cluster_info.missing_to_submit(self._api, self._discovery, self.namespace, objects):
                return Forbidden(
                    f"Context '{self.where}' may not {', '.join(map(str, lacking))} in namespace '{self.namespace}'.",
                    hint=cluster_info.role_request_message(self._api, self._discovery, self.namespace, lacking),
                )
        return None

    def _submission(self, objects: Sequence[Object]) -> Submission:
        from kubectl_ddp.backends.cluster.write.submission import Submission  # noqa: PLC0415 - only for submission

        return Submission(self._api, objects, self.namespace, notice=self._notice, discovery=self._discovery)

    def shared_presets(self) -> SharedPresets:
        """Return the presets that the namespace shares; empty without their ConfigMap."""
        from kubectl_ddp.spec.external_values import CONFIG_MAP, SharedPresets  # noqa: PLC0415 - rarely used

        place = f"the ConfigMap '{CONFIG_MAP}' in namespace '{self.namespace}'"
        try:
            found = self._api.get(f"{collection('v1', 'configmaps', self.namespace)}/{CONFIG_MAP}")
        except NotFound:
            return SharedPresets(place)
        return SharedPresets(place, found.get("data") or {})

    def code(self, name: str) -> list[Object]:
        """Return the ConfigMaps with the code of a job; empty if the job has none."""
        return code_of(self._api, self._jobs.named(name))

    def recreate(self, name: str, objects: Sequence[Object]) -> None:
        """Replace a finished run by a new one. Claims have no owner, so they are kept."""
        from kubectl_ddp.backends.cluster.write.recreate import recreate  # noqa: PLC0415 - only for a new run

        job = self._find_job(name)
        owner, earlier = job_kinds.owner_of(job) if job is not None else None, None
        if owner is not None:
            with contextlib.suppress(NotFound):  # an interrupted restart has deleted it
                earlier = self._api.get(self._ddpjob_path(owner))
        old = [item for item in (earlier, job) if item is not None]
        recreate(self._api, old, objects, lambda: self.submit(objects, earlier), self.namespace)

    def pending_restart(self, name: str) -> list[Object]:
        """Return the record of an unfinished restart; empty if there is none."""
        from kubectl_ddp.backends.cluster.write.recreate import pending_restart  # noqa: PLC0415 - only for a new run

        return pending_restart(self._api, name, self.namespace, self._find_job(name))

    def _find_job(self, name: str) -> Object | None:
        """Return the root object of a job; ``None`` if it does not exist."""
        try:
            return self._jobs.named(name)
        except NotFound:
            return None

    def scale(self, name: str, nodes: int, *, dry_run: bool = False) -> None:
        """Set the number of worker pods; in a dry run, only validate it.

        Raises UsageError outside the job's bounds, and if its engine does not accept another number.
        """
        from kubectl_ddp.backends.cluster.write.scaling import scaling_error, to_scale  # noqa: PLC0415 - only for this method

        job = self._jobs.active_job(name)
        patch = to_scale(job, nodes)
        owner = job_kinds.owner_of(job)
        if not job_kinds.is_scalable(job):
            try:
                self._jobs.change(job, patch, dryRun="All")
            except UsageError as refusal:
                raise scaling_error(job, refusal) from refusal
        if dry_run:
            return
        if owner is not None:
            self._change_ddpjob(owner, {job_kinds.REPLICAS: nodes})
        else:
            self._jobs.change(job, patch)

    def suspend(self, name: str, *, suspended: bool) -> str | None:
        """Suspend or resume a job; through Kueue if it is in one of Kueue's queues."""
        patch = Object()
        try:
            job = self._jobs.active_job(name)
        except NotFound as missing:  # a DDPJob that was created suspended has no root
            try:
                self._change_ddpjob(name, {job_kinds.SUSPEND: suspended})
            except (NotFound, NotServed, Forbidden):
                raise missing from None
            return None
        if (owner := job_kinds.owner_of(job)) is not None:
            self._change_ddpjob(owner, {job_kinds.SUSPEND: suspended})
            queue = job["metadata"]["labels"].get(KUEUE_QUEUE)
            return None if queue is None else str(queue)
        if not suspended and (stale := stale_annotations(job)):
            self._jobs.change(job, stale)
        if set_active(self._api, job, active=not suspended):
            return str(job["metadata"]["labels"][KUEUE_QUEUE])
        job_kinds.put(patch, job_kinds.engine_of(job).suspend, suspended)
        self._jobs.change(job, patch)
        return None

    def _change_ddpjob(self, name: str, spec: Mapping[str, object]) -> None:
        """Change a DDPJob, and wait for the answer of its controller. A notice reports that none answers."""
        from kubectl_ddp.backends.cluster.write.ddpjob_submission import ANSWER_SECONDS, is_observed  # noqa: PLC0415

        changed = self._api.merge(self._ddpjob_path(name), {"spec": dict(spec)})
        if not is_observed(self._api, self._ddpjob_path(name), changed):
            self._notice(
                f"No controller has acted on the change of the {job_kinds.KIND} '{name}' for {ANSWER_SECONDS:g} s. "
                "It takes effect when one runs; the chart ddp-platform installs it."
            )

    def _ddpjob_path(self, name: str) -> str:
        return f"{ddpjobs_path(self.namespace)}/{name}"

    def _delete_ddpjob(self, name: str) -> bool:
        """Delete a DDPJob with all objects that it owns. Returns false if there is none."""
        with contextlib.suppress(NotFound, NotServed, Forbidden):
            self._api.delete(self._ddpjob_path(name), uid=self._api.get(self._ddpjob_path(name))["metadata"]["uid"])
            return True
        return False

    def annotate(self, job: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of the job. Its other annotations are kept."""
        self._jobs.change(job, {"metadata": {"annotations": dict(annotations)}})

    def delete(self, name: str) -> None:
        """Delete the job with all objects it owns, or the remains of an interrupted command. Raises NotFound."""
        from kubectl_ddp.backends.cluster.write.recreate import delete_record, delete_remains  # noqa: PLC0415 - only for this method

        try:
            job = self._jobs.named(name)
        except NotFound:
            if self._delete_ddpjob(name) | delete_remains(self._api, name, self.namespace):
                return
            raise
        if (owner := job_kinds.owner_of(job)) is None or not self._delete_ddpjob(owner):
            self._jobs.delete(job)
        delete_record(self._api, name, self.namespace)
