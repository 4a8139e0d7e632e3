"""The content of the pods of any job: program, variables, memory, placement."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from ddp_trainer.common.constants import CheckpointScope, Env, Path
from ddp_trainer.launch import flags
from kubectl_ddp.code.archive import ARCHIVE, Code
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Site, render
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import REQUIRED
from kubectl_ddp.spec.torchrun import SWITCHES
from kubectl_ddp.values.parsers import EnvSource, SecretKey, Toleration
from kubectl_ddp.values.pod import PullPolicy, RuntimeMount
from kubectl_ddp.values.program import Command, Module, Script
from kubectl_ddp.values.quantity import Memory
from tests.support.jobs import ANY_JOB, a_job, jobs
from tests.support.rendered import RUN, container, environment, expanded, templates, worker_pod

RUNTIME = str(Path.RUNTIME)


def test_a_script_that_is_sent_starts_where_it_may_write_and_others_where_the_image_says() -> None:
    [sent] = worker_pod(a_job(program=Script("train.py"), args=()), code=Code("train.py", "print()"))["containers"]
    assert sent["workingDir"] == "/tmp"
    assert "workingDir" not in container(a_job(program=Module("mine.train")))


@given(jobs())
@ANY_JOB
def test_the_launcher_reads_from_its_arguments_what_the_job_says(spec: JobSpec) -> None:
    arguments = flags.parse([expanded(word) for word in container(spec)["args"]], {})
    assert arguments.nnodes == f"{spec.nnodes.minimum}:{spec.nnodes.maximum}"
    assert arguments.nproc_per_node == str(spec.nproc)
    assert (arguments.rdzv_id, arguments.rdzv_endpoint) == (RUN, f"{spec.name}-store:29400")
    assert arguments.max_restarts == spec.max_restarts
    started = [arguments.training_script, *arguments.training_script_args]
    match spec.program:
        case Module(name):
            assert (arguments.module, started) == (True, [name, *spec.args])
        case Command(words):
            assert (arguments.no_python, started) == (True, [*words, *spec.args])
        case Script(path):
            assert started == [f"{Path.CODE}/{path}", *spec.args]


@pytest.mark.parametrize(
    ("program", "site", "words"),
    [
        (Module("a.b"), Site.CLUSTER, ["-m", "a.b"]),
        (Script("/home/me/train.py"), Site.LOCAL, ["/home/me/train.py"]),
        (Script("src/train.py"), Site.CLUSTER, [f"{Path.CODE}/train.py"]),
        (Command(("sh", "-c", "exit 3")), Site.CLUSTER, ["--no-python", "sh", "-c", "exit 3"]),
    ],
)
def test_each_program_is_started_its_own_way(program: Any, site: Site, words: list[str]) -> None:
    arguments = container(a_job(program=program, args=()), site=site)["args"]
    assert arguments[8:] == words


def test_every_promised_variable_is_set_and_named_once() -> None:
    found = environment(a_job())
    assert found[Env.JOB] == "digits"
    assert found[Env.RUN_ID] == RUN
    assert found[Env.POD_NAME] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert found[Env.POD_IP] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert found[Env.NODE_NAME] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert found[Env.NAMESPACE] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    assert found[Env.RUN_DIR] == "/var/run/ddp"
    assert found[Env.METRICS_PORT] == "9464"
    assert found[Env.GRACE_SECONDS] == "30"
    assert (found[Env.SHARE_STORE_OFF], found[Env.RESTART_IN_PLACE]) == ("1", "1")
    of_metrics = {Env.METRICS_ADDRESS, Env.METRICS_DIR}
    of_a_group = {Env.CHANNEL, Env.GENERATION, Env.FENCE, Env.RESTARTS, Env.HEARTBEAT, Env.MOMENTS, Env.NODES}
    of_options = {Env.PARALLEL, Env.COMPILE_CACHE, Env.TORCHRUN_SHIM, Env.PACKAGES, Env.REQUIREMENTS}  # of keys
    others = of_metrics | of_a_group | (SWITCHES - {Env.RESTART_IN_PLACE}) | of_options
    of_train_jobs = {Env.LAUNCH_FLAGS}  # set by a runtime of the platform
    assert set(Env) - set(found) == others | {Env.PARENT_LINK} | of_train_jobs


def test_the_users_variables_win_over_those_that_are_only_a_default() -> None:
    assert environment(a_job(env={"HOME": "/data"}))["HOME"] == "/data"
    assert environment(a_job())["HOME"] == "/tmp"
    assert [environment(a_job())[name] for name in ("USER", "LOGNAME")] == ["ddp", "ddp"]
    for text in ({"USER": "ada"}, {"LOGNAME": "ada"}):
        assert [environment(a_job(env=text))[name] for name in ("USER", "LOGNAME")] == ["ada", "ada"]
    assert "HOME" not in environment(a_job(), site=Site.LOCAL)


def test_the_store_of_a_local_job_leaves_torchruns_port_to_other_programs() -> None:
    [endpoint] = [word for word in container(a_job(), site=Site.LOCAL)["args"] if word.startswith("--rdzv-endpoint=")]
    assert not endpoint.endswith(":29400")


def test_secrets_stay_where_they_are_on_a_cluster_and_are_inherited_here() -> None:
    sources = (EnvSource("secret", "s"), EnvSource("configmap", "c"))
    spec = a_job(secret_env={"TOKEN": SecretKey("hub", "token")}, env_from=sources)
    assert environment(spec)["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert container(spec)["envFrom"] == [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}]
    assert "TOKEN" not in environment(spec, site=Site.LOCAL)
    assert "envFrom" not in container(spec, site=Site.LOCAL)


def test_checkpoints_on_a_volume_belong_to_the_job() -> None:
    spec = a_job(checkpoint_claim="shared")
    volumes = {volume["name"]: volume for volume in worker_pod(spec)["volumes"]}
    assert volumes["checkpoints"]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert environment(spec)[Env.CHECKPOINT_SCOPE] == CheckpointScope.JOB


def test_a_compile_cache_on_a_claim_is_mounted_and_named_to_the_launcher() -> None:
    spec = a_job(compile_cache="kernels")
    volumes = {volume["name"]: volume for volume in worker_pod(spec)["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container(spec)["volumeMounts"]}
    assert volumes["compile-cache"]["persistentVolumeClaim"] == {"claimName": "kernels"}
    assert environment(spec)[Env.COMPILE_CACHE] == mounts["compile-cache"] == Path.COMPILE_CACHE


def test_a_compile_cache_in_a_directory_uses_the_volume_that_is_mounted_there() -> None:
    spec = a_job(compile_cache="/data/kernels")
    assert environment(spec)[Env.COMPILE_CACHE] == "/data/kernels"
    assert "compile-cache" not in {volume["name"] for volume in worker_pod(spec)["volumes"]}
    assert environment(spec, site=Site.LOCAL)[Env.COMPILE_CACHE] == "/data/kernels"


def test_shared_memory_is_memory_and_sized_below_the_limit() -> None:
    spec = a_job(memory=Memory(2**31), shm=Memory(2**29))
    volumes = {volume["name"]: volume for volume in worker_pod(spec)["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}
    assert container(spec)["resources"]["limits"]["memory"] == "2Gi"


def test_gpus_are_in_the_limits_and_their_taint_is_tolerated() -> None:
    spec = a_job(gpus=8, nproc=8)
    resources = container(spec)["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == "8"
    assert resources["requests"] == resources["limits"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in worker_pod(spec)["tolerations"]
    assert "nvidia.com/gpu" not in container(a_job())["resources"]["limits"]


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("dedicated", {"key": "dedicated", "operator": "Exists"}),
        ("dedicated=ml", {"key": "dedicated", "value": "ml", "operator": "Equal"}),
        ("dedicated=ml:NoExecute", {"key": "dedicated", "value": "ml", "effect": "NoExecute", "operator": "Equal"}),
        ("dedicated:NoSchedule", {"key": "dedicated", "effect": "NoSchedule", "operator": "Exists"}),
    ],
)
def test_taints_that_the_job_does_not_mind_are_tolerated_by_all_its_pods(text: str, rendered: Object) -> None:
    for template in templates(render(a_job(tolerations=(Toleration.parse(text),)), RUN)):
        assert rendered in template["spec"]["tolerations"]


def pods(engine: Engine, **changes: Any) -> list[Object]:
    """The templates of the pods of a job: of the workers and of the store."""
    return templates(render(a_job(engine=engine, **changes), RUN))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_who_the_pods_are_and_where_their_image_comes_from_is_the_users(engine: Engine) -> None:
    changes = {"service_account": "s3-reader", "image_pull_secrets": ("a", "b"), "image_pull_policy": PullPolicy.ALWAYS}
    for template in pods(engine, **changes):
        spec = template["spec"]
        assert (spec["serviceAccountName"], spec["imagePullSecrets"]) == ("s3-reader", [{"name": "a"}, {"name": "b"}])
        assert {item["imagePullPolicy"] for item in spec["containers"]} == {"Always"}
    assert all("serviceAccountName" not in template["spec"] for template in pods(engine))


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}),
        ({"run_as_user": 1000}, {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}),
        ({"run_as_user": 1000, "run_as_group": 0}, {"runAsUser": 1000, "runAsGroup": 0, "fsGroup": 0}),
        ({"run_as_user": "none"}, {}),
        ({"run_as_user": "none", "fs_group": 7}, {"fsGroup": 7}),
        ({"fs_group": "none"}, {"runAsUser": 65532, "runAsGroup": 65532}),
    ],
)
def test_a_group_follows_the_user_and_none_is_left_to_the_platform(given: Any, ids: dict[str, int]) -> None:
    for template in pods(Engine.JOB, **given):
        security = template["spec"]["securityContext"]
        assert {key: value for key, value in security.items() if key in {"runAsUser", "runAsGroup", "fsGroup"}} == ids
        assert security["runAsNonRoot"]


def test_labels_and_annotations_are_on_the_job_and_its_pods_over_defaults_and_under_the_jobs_own() -> None:
    chosen = {"team": "vision", "sidecar.istio.io/inject": "true"}
    notes = {"karpenter.sh/do-not-disrupt": "false", "note": "a: b"}
    objects = render(a_job(labels=chosen, annotations=notes, engine=Engine.JOB), RUN)
    for made in (objects[0], *templates(objects)):
        assert chosen.items() <= made["metadata"]["labels"].items()
        assert notes.items() <= made["metadata"]["annotations"].items()
        assert made["metadata"]["labels"]["ddp.dev/job"] == "digits"
    with pytest.raises(UsageError, match=r"labels: 'kueue.x-k8s.io/queue-name' is 'b', and the job itself sets it to"):
        render(a_job(queue="a", labels={"kueue.x-k8s.io/queue-name": "b"}), RUN)


def test_every_alternative_of_the_affinity_also_wants_what_the_fabric_does() -> None:
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in ("a", "b")]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}, "podAntiAffinity": {"x": []}}
    plain = worker_pod(a_job(affinity=affinity))
    assert plain["affinity"] == affinity
    fabric = worker_pod(a_job(affinity=affinity, gpus=4, nproc=4, fabric="gb200-mnnvl"))["affinity"]
    found = fabric["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [term["matchExpressions"][0]["key"] for term in found] == ["a", "b"]
    assert all(len(term["matchExpressions"]) > 1 for term in found)
    assert fabric["podAntiAffinity"] == {"x": []}


@pytest.mark.parametrize("engine", list(ENGINES))
def test_an_image_without_the_launcher_gets_it_from_the_runtime_image_in_every_pod(engine: Engine) -> None:
    image = {"image": "debian:13", "runtime_image": "ddp-runtime:1"}
    by_image = pods(engine, **image, runtime_mount=RuntimeMount.IMAGE)
    for copied, mounted in zip(pods(engine, **image), by_image, strict=True):
        [init] = copied["spec"]["initContainers"]
        assert (init["image"], init["volumeMounts"]) == ("ddp-runtime:1", [{"name": "runtime", "mountPath": RUNTIME}])
        assert "initContainers" not in mounted["spec"]
        volumes = [item["spec"]["volumes"] for item in (copied, mounted)]
        assert [volume for of_pod in volumes for volume in of_pod if volume["name"] == "runtime"] == [
            {"name": "runtime", "emptyDir": {}},
            {"name": "runtime", "image": {"reference": "ddp-runtime:1", "pullPolicy": "IfNotPresent"}},
        ]
        assert copied["spec"]["containers"] == mounted["spec"]["containers"]
        [found] = copied["spec"]["containers"]
        assert found["command"] == ["python3", RUNTIME, "store" if found["name"] == "store" else "launch"]
        assert {"name": "runtime", "mountPath": RUNTIME, "readOnly": True} in found["volumeMounts"]


@pytest.mark.parametrize(
    ("given", "python", "launch"),
    [
        ({}, "python", ["ddp-launch"]),
        ({"python": "python3.12"}, "python3.12", ["python3.12", "-m", "ddp_trainer", "launch"]),
        ({"runtime_image": "r:1"}, "python3", ["python3", RUNTIME, "launch"]),
        ({"runtime_image": "r:1", "python": "/opt/conda/bin/python"}, "/opt/conda/bin/python", None),
    ],
)
def test_one_interpreter_of_the_image_starts_everything(given: Any, python: str, launch: list[str] | None) -> None:
    spec, code = a_job(code="src", program=Script("train.py"), args=(), **given), Code(ARCHIVE, "")
    worker = worker_pod(spec, code=code)
    assert worker["initContainers"][-1]["command"][0] == python
    assert worker["containers"][0]["command"] == (launch or [python, RUNTIME, "launch"])
    assert templates(render(spec, RUN, code=code))[1]["spec"]["containers"][0]["command"][0] == python
    here = worker_pod(spec, code=code, site=Site.LOCAL)
    assert (here["initContainers"][0]["command"][0], here["containers"][0]["command"]) == ("python", ["ddp-launch"])
