"""A cluster as a place where jobs run: the backend's verbs in the API server's."""

from __future__ import annotations

import contextlib
import queue
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ddp_trainer.contract import Label, Port, PortName
from kubectl_ddp import roots
from kubectl_ddp.access import Access
from kubectl_ddp.backend import Entry, Handover, Object, Queued, Snapshot
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.aside import Aside
from kubectl_ddp.cluster.belongings import code_of, events_of, moment
from kubectl_ddp.cluster.changes import tell, wait
from kubectl_ddp.cluster.connection import Connection, connection_to
from kubectl_ddp.cluster.kubectl import Kubectl
from kubectl_ddp.cluster.parallel import together
from kubectl_ddp.cluster.podlogs import PodLogs, main_container
from kubectl_ddp.cluster.reflector import Reflector
from kubectl_ddp.cluster.refusals import NotServed
from kubectl_ddp.cluster.remains import delete_remains
from kubectl_ddp.cluster.renewal import renew
from kubectl_ddp.cluster.resources import Discovery, collection
from kubectl_ddp.cluster.servers import api_servers
from kubectl_ddp.cluster.slim import slim_pod, without_managers
from kubectl_ddp.cluster.standing import held_back, set_active, standing
from kubectl_ddp.cluster.submission import Submission
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, Unreachable, UsageError
from kubectl_ddp.program import program, there
from kubectl_ddp.queued import KUEUE_QUEUE, queued

if TYPE_CHECKING:
    from kubectl_ddp.capacity.model import Stock
    from kubectl_ddp.checks.model import Facts as Known
    from kubectl_ddp.checks.model import Subject
    from kubectl_ddp.doctor.cluster import ClusterFacts
    from kubectl_ddp.render.choose import Facts, Kind
    from kubectl_ddp.spec.model import JobSpec
    from kubectl_ddp.surroundings import Around, Surroundings

METRICS_SECONDS: Final = 5.0
"""How long a pod may take to answer through the API server's proxy."""

JOIN_SECONDS: Final = 2.0
"""How long a watch that was left may take to end; one that is just connecting ends later, and by itself."""


def on_stderr(text: str) -> None:
    """Tell the person something that is not data."""
    print(text, file=sys.stderr, flush=True)


class ClusterBackend:
    """The cluster of a kubeconfig's context. Implements :class:`kubectl_ddp.backend.Backend`."""

    def __init__(
        self,
        access: Access = Access(),  # noqa: B008 - frozen
        *,
        connection: Connection | None = None,
        notice: Callable[[str], None] = on_stderr,
    ) -> None:
        """Jobs of one namespace.

        Args:
            access: what kubectl's flags say of the cluster; its own rules by default.
            connection: instead of the one that these mean.
            notice: told what a person should know and no error is.
        """
        to = connection or connection_to(access)
        self.where = to.where
        self.namespace = to.namespace
        self._api = Api(to)
        self._discovery = Discovery(self._api)
        self._kubectl = Kubectl(to.namespace, access)
        self._notice = notice

    # -- reading -------------------------------------------------------------------------------------------------------

    def jobs(self, *, all_namespaces: bool = False) -> list[Snapshot]:
        """Every job of ours in the namespace, or in all of them, oldest first; without its events."""
        namespace = None if all_namespaces else self.namespace
        path = collection("v1", "pods", namespace)
        with Aside(lambda: self._api.items(path, reduce=slim_pod, labelSelector=Label.JOB)[0]) as pods:
            jobs = self._all(namespace)
            by_run = _by_run(pods.result() if jobs else ())
        jobs.sort(key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))
        at = standing(self._api, jobs)
        return [Snapshot(job, _in_order(by_run.get(_run_of(job), ())), queued=at(job)) for job in jobs]

    def facts(self) -> Facts:
        """What the cluster is, of that which decides how a job is rendered."""
        from kubectl_ddp.render.choose import Facts  # noqa: PLC0415 - 30 ms, and only to submit

        told, served = together(lambda: self._api.get("/version"), self._kinds_served)
        major, minor = (int(re.sub(r"\D.*", "", str(told[part])) or 0) for part in ("major", "minor"))
        return Facts(self.where, (major, minor), served)

    def _kinds_served(self) -> frozenset[Kind]:
        from kubectl_ddp.render.choose import kinds_asked_about  # noqa: PLC0415 - as above

        return frozenset(kind for kind in kinds_asked_about() if self._discovery.plural_of(*kind) is not None)

    def api_servers(self) -> tuple[str, ...]:
        """Addresses of the API servers; none, and a notice, where we may not know them."""
        return api_servers(self._api, self._notice)

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        """One job; without its events where nobody wants them. Raises NotFound."""
        path = collection("v1", "pods", self.namespace)
        mine = f"{Label.JOB}={name}"
        with Aside(lambda: self._api.items(path, reduce=without_managers, labelSelector=mine)[0]) as pods:
            job = self._ours(name)
            found = _snapshot(job, pods.result(), self._events(name) if events else ())
            return replace(found, queued=standing(self._api, [job])(job))

    def _events(self, name: str) -> list[Object]:
        """Events about what is named as the job and its pods are; no selector of the API server's can say that."""
        try:
            return self._api.items(
                collection("v1", "events", self.namespace),
                reduce=lambda event: without_managers(event) if _is_about(event, name) else None,
            )[0]
        except Forbidden:  # a job can be read without its events
            return []

    def watch(self, name: str) -> Iterator[Snapshot]:
        """The job now, and again whenever it, one of its pods or its events changed; ends when it is deleted."""
        first = self.job(name).job
        space, kind = self.namespace, _kind(first)
        jobs = Reflector(self._api, _jobs(kind, space), fieldSelector=f"metadata.name={name}")
        pods = Reflector(self._api, collection("v1", "pods", space), labelSelector=f"{Label.JOB}={name}")
        events = Reflector(self._api, collection("v1", "events", space), keep=lambda event: _is_about(event, name))
        changes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        reflectors = [jobs, pods]
        for reflector in (jobs, pods):
            reflector.read()
        with contextlib.suppress(Forbidden):
            events.read()
            reflectors.append(events)
        threads = [
            threading.Thread(target=tell, args=(reflector, changes), name=f"watch {name}", daemon=True)
            for reflector in reflectors
        ]
        for thread in threads:
            thread.start()
        try:
            while True:
                found = [job for job in jobs.objects() if job["metadata"]["uid"] == first["metadata"]["uid"]]
                if not found:
                    return
                job = _whole(kind, found[0])
                yield replace(_snapshot(job, pods.objects(), events.objects()), queued=self._in_queue(job))
                wait(changes)
        finally:
            for reflector in reflectors:
                reflector.stop()
            for thread in threads:  # one that is still there when Python ends may complain on stderr
                thread.join(timeout=JOIN_SECONDS)

    def _in_queue(self, job: Object) -> Queued | None:
        """Where a job stands that is watched: its place in line changes too often to be told."""
        at = queued(job)
        is_open = at is not None and not at.is_admitted
        return queued(job, held=held_back(self._api, [job])) if is_open else at

    def events(self, name: str) -> list[Object]:
        """Events about a job and all that was made for it, pods that are gone included, oldest first."""
        return events_of(self._api, self._ours(name), self._all(self.namespace))

    def enter(self, pod: Object, entry: Entry) -> Handover:
        """As ``kubectl exec`` does it."""
        return self._kubectl.enter(pod, entry)

    def forward(self, pod: Object, ports: Sequence[str]) -> Handover:
        """As ``kubectl port-forward`` does it."""
        return self._kubectl.forward(pod, ports)

    def metrics(self, pod: Object) -> str:
        """The pod's ``/metrics``, through the API server's proxy. Raises Unreachable, and Forbidden."""
        try:
            return self._api.text(f"{_pod_path(pod)}:{_metrics_port(pod)}/proxy/metrics", seconds=METRICS_SECONDS)
        except Forbidden:
            raise
        except DdpError as error:
            name = pod["metadata"]["name"]
            raise Unreachable(f"Pod '{name}' does not answer with its metrics: {error.message}") from error

    def logs(
        self,
        pod: Object,
        *,
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        since: str | None = None,
    ) -> Iterator[str]:
        """Lines of the pod's container; with ``follow`` until the container is gone."""
        source = PodLogs(self._api, _pod_path(pod), pod)
        entries = source.follow(tail=tail, since=since) if follow else source.read(tail=tail, since=since)
        for entry in entries:
            yield entry if timestamps else entry.partition(" ")[2]

    def look_around(self, job: Object, kinds: Collection[Around]) -> Surroundings:
        """What stands around a job, of these kinds, all asked for at once."""
        from kubectl_ddp.cluster.around import read  # noqa: PLC0415 - who explains a job pays for it

        return read(self._api, self.namespace, _kind(job).engine, kinds)

    def examine(self) -> ClusterFacts:
        """What the cluster is, and what we may do there."""
        from kubectl_ddp.cluster.examine import examine  # noqa: PLC0415 - a checkup alone needs it

        return examine(self._api, self.namespace)

    # -- changing ------------------------------------------------------------------------------------------------------

    def submit(self, objects: Sequence[Object]) -> None:
        """Create a job; nothing of it runs before all of it is there. The identical job again changes nothing.

        Raises:
            NameTaken: something else has the name.
            PreflightFailed: the cluster does not know a kind that the job needs.
            Forbidden, UsageError: the API server refuses an object.
        """
        try:
            self._submission(objects).submit()
        except Forbidden as refusal:
            raise self._all_that_is_missing(objects) or refusal from refusal

    def dry_run(self, objects: Sequence[Object]) -> list[Object]:
        """The objects as the API server would store them; it checks all and creates none. Raises as :meth:`submit`."""
        return self._submission(objects).dry_run()

    def preflight(self, spec: JobSpec, objects: Sequence[Object], *, is_thorough: bool) -> tuple[Subject, Known]:
        """A job, and what has to be known of the cluster to tell whether it can run there; nothing is changed.

        Raises NotFound when there is no such namespace.
        """
        from kubectl_ddp.checks.subject import subject_of  # noqa: PLC0415 - for those who submit
        from kubectl_ddp.cluster.facts import Inquiry  # noqa: PLC0415

        subject = subject_of(spec, objects, spec.namespace or self.namespace)
        return subject, Inquiry(self._api, self._discovery, subject, objects, is_thorough).facts()

    def stock(self) -> Stock:
        """What decides what is free: machines, pods, queues; what may not be read is told in its place."""
        from kubectl_ddp.cluster.stock import read  # noqa: PLC0415 - for ``capacity`` alone

        return read(self._api, self._discovery, self.namespace)

    def _all_that_is_missing(self, objects: Sequence[Object]) -> Forbidden | None:
        """Every right that is missing in one sentence; ``None`` when it was no right, or nobody may ask."""
        from kubectl_ddp.cluster import granted  # noqa: PLC0415 - for a refusal alone

        with contextlib.suppress(DdpError):
            if lacking := granted.missing_to_submit(self._api, self._discovery, self.namespace, objects):
                return Forbidden(
                    f"Context '{self.where}' may not {', '.join(map(str, lacking))} in namespace '{self.namespace}'.",
                    hint=granted.to_ask_for(self._api, self._discovery, self.namespace, lacking),
                )
        return None

    def _submission(self, objects: Sequence[Object]) -> Submission:
        return Submission(self._api, objects, self.namespace, notice=self._notice, discovery=self._discovery)

    def code(self, name: str) -> Object | None:
        """The ConfigMap with the code that travels with a job; ``None`` when none does."""
        return code_of(self._api, self._ours(name))

    def renew(self, name: str, objects: Sequence[Object]) -> None:
        """Put a new run in the place of one that is over; the claims that it names are nobody's, and stay."""
        renew(self._api, self._ours(name), self._submission(objects))

    def scale(self, name: str, nodes: int) -> None:
        """Set the number of worker pods. Raises UsageError outside of the job's bounds."""
        job = self._changeable(name)
        kind = _kind(job)
        if not kind.is_scalable:
            raise UsageError(
                f"A {kind.kind} such as '{name}' cannot be scaled while it runs.",
                hint="Submit it again with other --nnodes, or with --engine pytorchjob or job.",
            )
        if KUEUE_QUEUE in job["metadata"]["labels"]:
            raise UsageError(
                f"Job '{name}' is in a queue of Kueue's, which stops a job that is scaled while it runs.",
                hint="Submit it again with other --nnodes.",
            )
        low, high = roots.bounds(job)
        if not low <= nodes <= high:
            can = f"between {low} and {high} nodes" if low < high else f"exactly {low} nodes"
            raise UsageError(
                f"Job '{name}' cannot have {nodes} nodes: it was submitted for {can}.",
                hint="Submit it again with other --nnodes." if low == high else "Choose a number between them.",
            )
        patch: Object = {}
        for path in kind.nodes:
            roots.put(patch, path, nodes)
        self._patch(job, patch)

    def suspend(self, name: str, *, suspended: bool) -> str | None:
        """Stop the pods and keep the job, or let it run again; what is in a queue of Kueue's, through Kueue."""
        job, patch = self._changeable(name), Object()
        if set_active(self._api, job, active=not suspended):
            return str(job["metadata"]["labels"][KUEUE_QUEUE])
        roots.put(patch, _kind(job).suspend, suspended)
        self._patch(job, patch)
        return None

    def annotate(self, job: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of this very job, and leave its others."""
        self._patch(job, {"metadata": {"annotations": dict(annotations)}})

    def delete(self, name: str) -> None:
        """Delete the job, or what a submission of it left that died; what it owns goes too. Raises NotFound."""
        try:
            job = self._ours(name)
        except NotFound:
            if delete_remains(self._api, name, self.namespace):
                return
            raise
        self._api.delete(f"{_jobs(_kind(job), self.namespace)}/{name}", uid=job["metadata"]["uid"])

    # -- both ----------------------------------------------------------------------------------------------------------

    def _all(self, namespace: str | None) -> list[Object]:
        """Every root object of ours; of a kind that may not be listed a notice.

        Raises what the first kind is refused with, when no job is found among the others.
        """
        found: list[Object] = []
        refusals: list[Forbidden] = []
        for kind in roots.ROOTS.values():
            try:
                items, _ = self._api.items(_jobs(kind, namespace), reduce=without_managers, labelSelector=Label.JOB)
            except NotServed:
                continue
            except Forbidden as refusal:
                refusals.append(refusal)
                continue
            found += [job for item in items if _is_ours(job := _whole(kind, item))]
        if refusals and not found:
            raise refusals[0]
        for refused in refusals:  # else a job that runs would seem not to be there
            self._notice(f"warning: {refused.message}")
        return found

    def _ours(self, name: str) -> Object:
        """The root object of a job that we submitted. Raises NotFound."""
        refusals: list[DdpError] = []
        for kind in roots.ROOTS.values():
            try:
                job = _whole(kind, self._api.get(f"{_jobs(kind, self.namespace)}/{name}"))
            except (NotServed, NotFound):
                continue
            except Forbidden as refusal:
                refusals.append(refusal)
                continue
            if _is_ours(job):
                return job
            refusals.append(
                NotFound(
                    f"The {kind.kind} '{name}' in namespace '{self.namespace}' was not submitted by {program()}.",
                    hint="Use kubectl for it.",
                )
            )
        if refusals:
            raise refusals[0]
        raise NotFound(
            f"There is no job '{name}' in namespace '{self.namespace}' of context '{self.where}'.",
            hint=f"'{program()} list{there()}' names them all; -n chooses another namespace.",
        )

    def _changeable(self, name: str) -> Object:
        """The root object of a job that is not over. Raises NotFound, UsageError."""
        job = self._ours(name)
        if {"Succeeded", "Failed"} & roots.conditions(job).keys():
            raise UsageError(
                f"Job '{name}' is over and cannot be changed.", hint=f"Delete it: '{program()} delete {name}{there()}'."
            )
        return job

    def _patch(self, job: Object, patch: Object) -> None:
        about = job["metadata"]
        path = f"{_jobs(_kind(job), self.namespace)}/{about['name']}"
        self._api.merge(path, {**patch, "metadata": {**patch.get("metadata", {}), "uid": about["uid"]}})


def _jobs(kind: roots.Root, namespace: str | None) -> str:
    return collection(kind.api_version, kind.plural, namespace)


def _kind(job: Object) -> roots.Root:
    return roots.kind_of(job) or roots.PYTORCHJOB


def _is_ours(job: Object) -> bool:
    """Whether it is a root of ours, and not what an operator made of one, or a store."""
    owners = job["metadata"].get("ownerReferences") or ()
    is_made = any(owner.get("controller") for owner in owners)
    return not is_made and roots.kind_of(job) is not None and Label.JOB in (job["metadata"].get("labels") or {})


def _pod_path(pod: Object) -> str:
    return f"{collection('v1', 'pods', pod['metadata']['namespace'])}/{pod['metadata']['name']}"


def _whole(kind: roots.Root, job: Object) -> Object:
    """A job with its kind, which lists leave out, and a status, which a job that no operator has seen lacks."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, "status": {}} | job


Run = tuple[str, str, str]


def _run_of(item: Object) -> Run:
    """Which run a job or a pod is of: namespace, name and run id."""
    about = item["metadata"]
    labels = about.get("labels") or {}
    return str(about.get("namespace")), str(labels.get(Label.JOB)), str(labels.get(Label.RUN_ID))


def _by_run(pods: Iterable[Object]) -> dict[Run, list[Object]]:
    found: dict[Run, list[Object]] = {}
    for pod in pods:
        found.setdefault(_run_of(pod), []).append(pod)
    return found


def _pods_of(job: Object, pods: Sequence[Object]) -> tuple[Object, ...]:
    """The pods of this run, in order; those of a deleted job of the same name may still be ending."""
    return _in_order(_by_run(pods).get(_run_of(job), ()))


def _in_order(pods: Iterable[Object]) -> tuple[Object, ...]:
    """Pods sorted by name, worker-10 after worker-9."""
    return tuple(sorted(pods, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"])))


def _is_about(event: Object, name: str) -> bool:
    about = str(event["involvedObject"].get("name", ""))
    return about == name or about.startswith(f"{name}-")


def _snapshot(job: Object, pods: Sequence[Object], events: Sequence[Object]) -> Snapshot:
    """A job with its pods, and with the events that are about one of these very objects."""
    mine = _pods_of(job, pods)
    uids = {each["metadata"]["uid"] for each in (job, *mine)}
    about = [event for event in events if event["involvedObject"].get("uid") in uids]
    return Snapshot(job, mine, tuple(sorted(about, key=moment)), queued(job))


def _metrics_port(pod: Object) -> int:
    ports = next((c.get("ports") or () for c in pod["spec"]["containers"] if c["name"] == main_container(pod)), ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == PortName.METRICS), Port.METRICS)
