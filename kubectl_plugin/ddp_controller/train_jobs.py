"""TrainJobs of the platform's ClusterTrainingRuntimes, made by ``kubectl apply`` or Kubeflow's SDK.

Kubeflow Trainer makes the pods. Their template is the same for all jobs of a runtime, so this module adds what differs
between jobs, once the first pod exists:

1. the key of the namespace, from which init containers derive the secret of each run,
2. store, Service, NetworkPolicy and PodMonitor, which the TrainJob owns,
3. the specification and the labels of the job on the TrainJob, so that ``kubectl ddp`` finds it,
4. the labels of the job on each pod.

From then on the number of pods follows the annotation :data:`Annotation.NODES`. Every step reads what is there, so
another process can continue after each request. The specification and the status of the TrainJob are never changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ddp_controller.executor import merge_same, report_event
from ddp_controller.reconciler import MALFORMED, TRANSIENT, backend_of
from ddp_controller.running_job import OVER
from ddp_trainer.common.constants import SECRET_KEY, Annotation, Env, Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.backends.cluster.read.jobs import path, with_type_meta
from kubectl_ddp.backends.cluster.write.ddpjob_submission import OwnedSubmission
from kubectl_ddp.client.layers import layer_of_mapping
from kubectl_ddp.client.submission import Prepared, prepare_object
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import AlreadyExists, DdpError, NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, epoch
from kubectl_ddp.render.pod import RUNTIME_VOLUME, TORCHRUN_HOOKS
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from kubectl_ddp.status.termination_message import is_running, stores
from kubectl_ddp.values.pod import RuntimeMount
from kubectl_ddp.values.program import Command
from kubectl_ddp.values.quantity import Cpu, Memory, validate_node_count
from kubectl_ddp.version import default_image

JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
"""Labels that JobSet adds to pods. The name is that of the TrainJob, and the uid is the id of the run."""
KEY_SECRET: Final = "ddp-namespace-key"  # noqa: S105 - a name
"""Secret of a namespace, which the controller creates and never reads."""
KEY: Final = "key"
INIT_CONTAINER: Final = "derive-secret"
COPY_CONTAINER: Final = "copy-runtime"

Run = tuple[str, str, str]
"""Namespace and name of a TrainJob, and the uid of its JobSet or its own."""

PAUSE_SECONDS: Final = 2.0
"""Time until a job is looked at again after an error. It doubles with each further error."""
LONGEST_PAUSE_SECONDS: Final = 60.0
STORE_SECONDS: Final = 60.0
"""Time after the end of a TrainJob in which its store ends by itself. A store that is stopped loses its pod."""
TRAIN_JOB: Final = ENGINES[Engine.TRAINJOB]
JOB_SET: Final = ENGINES[Engine.JOBSET]
SIZES: Final[Mapping[str, type[Cpu | Memory]]] = {"cpu": Cpu, "memory": Memory}


class TrainJobs:
    """Adds the objects and labels of TrainJobs, and resizes them."""

    def __init__(self, api: Api, *, log: Callable[..., None], clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._log = log
        self._clock = clock
        self._paused: dict[Run, tuple[float, float]] = {}
        """Run → time until which it is left alone, and length of this pause."""
        self._sized: dict[str, tuple[str, ...]] = {}
        """Uid of a TrainJob → versions of what its size was decided on."""

    def reconcile(
        self, pods: Iterable[Object], jobs: Iterable[Snapshot], *, may_act: Callable[[], bool] = lambda: True
    ) -> None:
        """Add what new TrainJobs need, and resize the known ones.

        Args:
            pods: Pods without the labels of their job.
            jobs: Known TrainJobs.
            may_act: Returns false once this process has lost the Lease or has to stop.
        """
        by_run: dict[Run, list[Object]] = {}
        for pod in pods:
            metadata = pod["metadata"]
            name, uid = (metadata["labels"].get(label) for label in (JOBSET_NAME, JOBSET_UID))
            if name and uid and "deletionTimestamp" not in metadata:
                by_run.setdefault((metadata["namespace"], name, uid), []).append(pod)
        now = self._clock()
        self._paused = {key: end for key, end in self._paused.items() if end[0] > now - LONGEST_PAUSE_SECONDS}
        for key, found in by_run.items():
            if not self._is_paused(key) and may_act():
                self._attempt(key, partial(self._name_pods, *key, found))
        known, self._sized = self._sized, {}
        for snapshot in jobs:
            metadata = snapshot.job["metadata"]
            key = metadata["namespace"], metadata["name"], metadata["uid"]
            version = (metadata["resourceVersion"], *(pod["metadata"]["uid"] for pod in snapshot.pods))
            if (ended := _end_of(snapshot.job)) is not None:
                has_store = now > ended + STORE_SECONDS and any(map(is_running, stores(snapshot.pods)))
                if has_store and not self._is_paused(key) and may_act():
                    self._attempt(key, partial(self._stop_store, snapshot.job))
                continue
            is_done = known.get(metadata["uid"]) == version or Annotation.NODES not in metadata["annotations"]
            if not is_done and (self._is_paused(key) or not may_act()):
                continue
            if is_done or self._attempt(key, partial(self._resize, snapshot.job)):
                self._sized[metadata["uid"]] = version

    def _attempt(self, key: Run, action: Callable[[], None]) -> bool:
        """Return whether an action on a TrainJob succeeded. It is tried again after a pause."""
        try:
            action()
        except (DdpError, *MALFORMED) as error:
            _, before = self._paused.get(key, (0.0, PAUSE_SECONDS / 2))
            pause = min(2 * before, LONGEST_PAUSE_SECONDS)
            self._paused[key] = self._clock() + pause, pause
            if not isinstance(error, (Conflict, NotFound)):
                self._log("refused", action="trainjob", job="/".join(key[:2]), error=f"{type(error).__name__}: {error}")
            return False
        self._paused.pop(key, None)
        return True

    def _is_paused(self, key: Run) -> bool:
        return self._paused.get(key, (0.0, 0.0))[0] > self._clock()

    # -- objects and labels --------------------------------------------------------------------------------------------

    def _name_pods(self, namespace: str, name: str, run_id: str, pods: list[Object]) -> None:
        """Label the pods of a TrainJob, after it has all that they need."""
        job = self._train_job(namespace, name, run_id)
        self._create_key(namespace)
        if (job["metadata"].get("labels") or {}).get(Label.RUN_ID) != run_id:
            try:
                self._take_over(job, pods[0], run_id)
            except (*TRANSIENT, NotFound):
                raise
            except (DdpError, *MALFORMED) as error:
                report_event(self._api, job, "Warning", "NotManaged", str(error))
                raise
        for pod in pods:
            labels = {Label.JOB: name, Label.RUN_ID: run_id}
            with contextlib.suppress(NotFound):
                merge_same(self._api, collection("v1", "pods", namespace), pod, {"metadata": {"labels": labels}})

    def _train_job(self, namespace: str, name: str, run_id: str) -> Object:
        """Return the TrainJob of the JobSet that labels of pods name. Raises NotFound if the labels are wrong."""
        job = with_type_meta(TRAIN_JOB, self._api.get(f"{path(TRAIN_JOB, namespace)}/{name}"))
        metadata = self._api.get(f"{path(JOB_SET, namespace)}/{name}")["metadata"]
        is_its_own = job["metadata"]["uid"] in {owner["uid"] for owner in metadata.get("ownerReferences") or ()}
        if metadata["uid"] != run_id or not is_its_own or not job_kinds.is_of_cluster_runtime(job):
            raise NotFound(f"No TrainJob '{name}' of a ClusterTrainingRuntime has the run {run_id}.")
        return job

    def _take_over(self, job: Object, pod: Object, run_id: str) -> None:
        """Create the objects of a TrainJob, and write its specification and its labels."""
        metadata = job["metadata"]
        pod = self._api.get(f"{collection('v1', 'pods', metadata['namespace'])}/{pod['metadata']['name']}")
        prepared = self._prepared(job, pod)
        objects = [item for item in prepared.objects(run_id) if item["kind"] not in {"Secret", "TrainingRuntime"}]
        for item in objects:
            if item["kind"] == "Job":
                _derive_secret(item["spec"]["template"]["spec"], pod["spec"])
        submission = OwnedSubmission(
            self._api, objects, job, notice=lambda text: self._log("notice", job=metadata["name"], text=text)
        )
        submission.create_missing_objects()
        root = job_kinds.root_of(objects)["metadata"]
        created = epoch(metadata.get("creationTimestamp")) or self._clock()
        annotations = {**root["annotations"], Annotation.SUBMITTED: f"{created:.3f}"}
        patch = {"metadata": {"labels": root["labels"], "annotations": annotations}}
        merge_same(self._api, path(TRAIN_JOB, metadata["namespace"]), job, patch)
        self._log("created", job=f"{metadata['namespace']}/{metadata['name']}", root=TRAIN_JOB.resource)

    def _create_key(self, namespace: str) -> None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET},
            "type": "Opaque",
            "immutable": True,
            "stringData": {KEY: secrets.token_hex(32)},
        }
        with contextlib.suppress(AlreadyExists):
            self._api.create(collection("v1", "secrets", namespace), secret)

    def _prepared(self, job: Object, pod: Object) -> Prepared:
        """Return the job as ``kubectl ddp submit`` would prepare it. Raises UsageError."""
        values, words = values_of_pod(job["metadata"]["name"], pod)
        backend = backend_of(self._api, job, self._log)
        context = DefaultingContext(image=default_image(), reads_files=False)
        resolved = resolve([layer_of_mapping(values)], context)
        resolved = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, program=Command(words)))
        return prepare_object(resolved, None).resolve_engine(backend)

    def _stop_store(self, job: Object) -> None:
        """Stop the store of a TrainJob that is over. It waits for the launchers, and the command started none."""
        metadata = job["metadata"]
        jobs = collection("batch/v1", "jobs", metadata["namespace"])
        store = self._api.get(f"{jobs}/{metadata['name']}-store")
        if metadata["uid"] in {owner["uid"] for owner in store["metadata"].get("ownerReferences") or ()}:
            merge_same(self._api, jobs, store, {"spec": {"suspend": True}})

    # -- size ----------------------------------------------------------------------------------------------------------

    def _resize(self, job: Object) -> None:
        """Set the number of pods of a running TrainJob.

        JobSet passes its own number on if its feature gate ``ElasticJobSet`` is on. Without the gate it refuses another
        number, and leaves the number of the Job inside it alone.
        """
        metadata, nodes = job["metadata"], job_kinds.desired_nodes(job)
        if job_kinds.is_suspend_requested(job):
            return
        is_moving = bool(job_kinds.json_annotation(job, Annotation.MOVE))  # with a temporary pod
        try:
            validate_node_count(job_kinds.bounds(job), metadata["name"], nodes - is_moving)
        except UsageError as error:
            report_event(self._api, job, "Warning", "NotScaled", str(error))
            return
        jobs = collection("batch/v1", "jobs", metadata["namespace"])
        inner = self._api.get(f"{jobs}/{metadata['name']}-{TRAIN_JOB.container}-0")
        if inner["spec"].get("parallelism") == nodes:
            return
        sets = path(JOB_SET, metadata["namespace"])
        job_set = self._api.get(f"{sets}/{metadata['name']}")
        is_passed_on = job_kinds.desired_nodes(with_type_meta(JOB_SET, job_set)) != nodes
        patch: Object = {"spec": {"replicatedJobs": job_set["spec"]["replicatedJobs"]}}
        for field in JOB_SET.nodes:
            job_kinds.put(patch, field, nodes)
        try:
            if is_passed_on:
                merge_same(self._api, sets, job_set, patch)
        except UsageError as refusal:
            if "immutable" not in refusal.message:
                raise
            is_passed_on = False
        if not is_passed_on:
            merge_same(self._api, jobs, inner, {"spec": {field[-1]: nodes for field in JOB_SET.nodes}})
        self._log("scaled", job=f"{metadata['namespace']}/{metadata['name']}", nodes=nodes)


def _end_of(job: Object) -> float | None:
    """Return the Unix time of the end of a TrainJob; None if it is not over."""
    conditions = job_kinds.conditions(job)
    return next((epoch(conditions[name].get("lastTransitionTime")) for name in OVER if name in conditions), None)


def _is_readable(kind: type[Cpu | Memory], text: str) -> bool:
    """Return whether a job file can have this quantity. It only describes the job here."""
    try:
        kind.parse(text)
    except (UsageError, ValueError):
        return False
    return True


def values_of_pod(name: str, pod: Object) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the keys of a job whose pods are like this one, and the words of its program."""
    spec = pod["spec"]
    [container] = [container for container in spec["containers"] if container["name"] == TRAIN_JOB.container]
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == RUNTIME_VOLUME]
    copies = [container["image"] for container in spec["initContainers"] if container["name"] == COPY_CONTAINER]
    env = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    if TORCHRUN_HOOKS not in env.get("PYTHONPATH", ""):
        raise UsageError(
            "The TrainJob replaces the variable PYTHONPATH of its runtime, so its torchrun is that of the image.",
            hint="Add your directories behind its value, as the runtime shows it.",
        )
    limits = container.get("resources", {}).get("limits") or {}
    gpus = int(limits.get("nvidia.com/gpu", 0))
    nproc = env.get("PET_NPROC_PER_NODE", "")
    flags = dict(flag.strip("'").partition("=")[::2] for flag in env.get(Env.LAUNCH_FLAGS, "").split())
    values = {
        "name": name,
        "image": container["image"],
        "imagePullPolicy": container.get("imagePullPolicy"),
        "imagePullSecrets": [secret["name"] for secret in spec.get("imagePullSecrets") or ()],
        "command": ["true"],  # replaced, since the launcher takes a torchrun apart that this job runs as it is
        "engine": TRAIN_JOB.name,
        "gang": "none",
        "nnodes": flags.get("--nnodes") or env.get("PET_NNODES") or "1",
        "nproc": nproc if nproc.isdecimal() else str(max(gpus, 1)),
        "maxRestarts": flags.get("--max-restarts"),
        "gpus": gpus,
        **{name: text for name, kind in SIZES.items() if (text := limits.get(name)) and _is_readable(kind, text)},
        "grace": spec.get("terminationGracePeriodSeconds"),
        "priority": spec.get("priorityClassName"),
        "runtimeImage": copies[0] if copies else volume["image"]["reference"],
        "runtimeMount": RuntimeMount.COPY if copies else RuntimeMount.IMAGE,
    }
    words = (*container.get("command", ()), *container.get("args", ()))
    return {key: value for key, value in values.items() if value not in (None, [])}, words


def _derive_secret(store: Object, worker: Object) -> None:
    """Have the pod of the store derive the secret of the run as the workers do."""
    [derive] = [container for container in worker["initContainers"] if container["name"] == INIT_CONTAINER]
    mounts = {mount["name"] for mount in derive["volumeMounts"]}
    [secret] = [volume for volume in store["volumes"] if volume["name"] == SECRET_KEY]
    store["volumes"].remove(secret)
    store["volumes"] += [volume for volume in worker["volumes"] if volume["name"] in mounts]
    [identity] = [variable for variable in store["containers"][0]["env"] if variable["name"] == Env.RUN_ID]
    store.setdefault("initContainers", []).append({**derive, "env": [identity]})
