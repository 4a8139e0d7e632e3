"""The platform with its controller, and jobs as releases of ``charts/ddp-job``, on a real cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import NotFound
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import condition_of
from tests.cluster.helm_release import PLATFORM, release, submitter
from tests.cluster.live_cluster import Namespace, namespace, until
from tests.cluster.test_cluster_ddpjob import DEFINITIONS, get, kubectl, phase
from tests.cluster.test_cluster_documents import kubeconfig_of, run_block
from tests.docs.test_documents import FENCE
from tests.support.helm import CHARTS, ROOT, Done, Helm, helms

pytestmark = pytest.mark.alone  # every submission in the cluster creates a DDPJob if the kind is served
PAGE = ROOT / "docs/howto/kubectl-only.md"
CHART = str(CHARTS / "ddp-job")
DEFINITION = f"{DEFINITIONS}/ddpjobs.ddp.dev"
SMALL: dict[str, Any] = {"engine": "job", "nproc": 1, "memory": "512Mi", "shm": "64Mi", "grace": "5s"}
SLEEPER: dict[str, Any] = {"command": ["sleep", "3600"], "nnodes": "1:2", "cpu": "50m"}


@pytest.fixture(scope="module")
def training(
    helm: Helm, api: Api, image: str, controller_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Namespace]:
    """A namespace that the platform's controller manages."""
    path, _, tag = controller_image.rpartition(":")
    controller = {"image": {"repository": path.rpartition("/")[2], "tag": tag}, "replicas": 1}
    home = tmp_path_factory.mktemp("home")
    with namespace(api, image, home) as space, release(helm, space) as made:
        try:
            values = made.values(test={"enabled": False}, controller={**controller, "namespaces": [made.kept]})
            made.run("install", str(PLATFORM), "--wait", "--timeout", "3m", values=values).ok()
            yield dataclasses.replace(space, name=made.kept, _collections=[])
        finally:
            with contextlib.suppress(NotFound):
                api.delete(DEFINITION, uid=api.get(DEFINITION)["metadata"]["uid"])


def helm_in(space: Namespace, helm: Helm, verb: str, name: str, values: Mapping[str, Any] | None = None) -> Done:
    words = [CHART, "--values", "-"] if values is not None else []
    return helm.run(verb, name, *words, "--namespace", space.name, stdin=json.dumps(values or {}), seconds=120)


@pytest.mark.timeout(600)
def test_an_upgrade_scales_a_release_and_what_cannot_change_is_refused(training: Namespace) -> None:
    helm, other = helms()[max(helms())], helms()[min(helms())]
    values = {**SMALL, **SLEEPER, "image": training.image}
    assert "kubectl get ddp life" in helm_in(training, helm, "install", "life", values).ok().out
    until("two nodes", lambda: nodes(training, "life") == "2/2")
    pods = {pod["metadata"]["uid"] for pod in training.pods()}
    helm_in(training, helm, "upgrade", "life", values | {"replicas": 1}).ok()
    until("one node", lambda: nodes(training, "life") == "1/1")
    refused = helm_in(training, helm, "upgrade", "life", values | {"nnodes": "1:3"})
    assert refused.code != 0
    assert "only replicas, suspend, ttl can change" in refused.err
    assert get(training, "life")["spec"]["nnodes"] == "1:2"
    helm.run("rollback", "life", "1", "--namespace", training.name).ok()
    assert "replicas" not in get(training, "life")["spec"]
    helm_in(training, helm, "upgrade", "life", values | {"replicas": 2}).ok()
    until("two nodes again", lambda: nodes(training, "life") == "2/2")
    assert pods & {pod["metadata"]["uid"] for pod in training.pods()}
    # Last, because after an upgrade by Helm 3, Helm 4 owns changed fields differently, and a rollback keeps them.
    before = get(training, "life")["metadata"]["generation"]
    helm_in(training, other, "upgrade", "life", values | {"replicas": 2}).ok()
    assert get(training, "life")["metadata"]["generation"] == before
    helm_in(training, helm, "uninstall", "life").ok()
    until("nothing left", lambda: not training.left())


def nodes(space: Namespace, name: str) -> str:
    """Return ``status.nodes`` of a DDPJob."""
    return str((get(space, name).get("status") or {}).get("nodes"))


def test_a_rendered_object_is_applied_by_kubectl_on_either_side(training: Namespace, helm: Helm) -> None:
    """``kubectl diff`` then reports no difference."""
    values = {**SMALL, **SLEEPER, "image": training.image, "suspend": True}
    for name, how in (("by-client", ()), ("by-server", ("--server-side", "--field-manager=argocd-controller"))):
        text = helm_in(training, helm, "template", name, values).ok().out
        for _ in range(2):
            kubectl(training, "apply", *how, "-f", "-", stdin=text)
            kubectl(training, "scale", f"ddp/{name}", "--replicas=1")
            kubectl(training, "diff", *how, "-f", "-", stdin=text)
        assert get(training, name)["spec"]["replicas"] == 1
        until("the state", lambda name=name: phase(training, name) == "Suspended")
        kubectl(training, "delete", "-f", "-", stdin=text)


@pytest.mark.timeout(300)
def test_the_page_about_kubectl_alone_prints_what_it_shows(training: Namespace) -> None:
    space, text = training, PAGE.read_text()
    [job] = [match[3] for match in FENCE.finditer(text) if match[1] == "yaml"]
    (space.home / "job.yaml").write_text(job.replace("registry.example.com/ddp-trainer:0.1.0", space.image))
    shown = [match[3] for match in FENCE.finditer(text) if (match[1], match[2]) == ("console", " kubectl")]
    printed = run_block("".join(shown), space.home, timeout=200, KUBECONFIG=str(kubeconfig_of(space)))
    for line in "".join(shown).splitlines():
        if not line.startswith(("$ ", "digits ")):  # columns with ages and image names vary
            assert line.replace("training", space.name) in printed.splitlines(), printed
    assert "GPUs per node" in printed
    assert "cannot feed 2 ranks" in printed
    until("nothing left", lambda: not space.left())


SIZE = ("--nnodes", "1:2", "--nproc", "1", "--cpu", "50m", "--memory", "256Mi", "--shm", "16Mi", "--grace", "5s")
SCRIPT = "import time\nprint('hello from the script', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def user(training: Namespace) -> Namespace:
    """The platform's namespace, for a user whose only role in it is ``ddp-submit``."""
    outsider = dataclasses.replace(training, name=training.name.removesuffix("-kept"))
    path = submitter(outsider, training.name, "ddp-submit")
    return dataclasses.replace(training, environ={"KUBECONFIG": str(path)}, _collections=[])


@pytest.mark.timeout(600)
def test_the_role_to_submit_is_enough_for_a_life_of_a_job_and_opens_nothing_else(user: Namespace) -> None:
    script = user.home / "hello.py"
    script.write_text(SCRIPT)
    user.ddp("submit", str(script), "--name", "mine", "--image", user.image, "--engine", "job", *SIZE).ok()
    until("two nodes", lambda: get(user, "mine")["status"].get("nodes") == "2/2")
    until("its lines", lambda: "hello from the script" in user.ddp("logs", "mine").ok().out)
    assert user.ddp("status", "mine", "-o", "json").ok().json["state"] == "Running"
    user.ddp("scale", "mine", "--nnodes", "1", "--no-wait").ok()
    until("one node", lambda: get(user, "mine")["status"].get("nodes") == "1/1")
    user.ddp("suspend", "mine").ok()
    until("that it is suspended", lambda: phase(user, "mine") == "Suspended")
    user.ddp("resume", "mine").ok()
    until("one node again", lambda: get(user, "mine")["status"].get("nodes") == "1/1")
    runs_nothing_for_others(user)
    user.ddp("delete", "mine", "--yes").ok()
    until("nothing left", lambda: not user.left())


def runs_nothing_for_others(user: Namespace) -> None:
    """Check that the controller does nothing for the submitter that the submitter may not do."""
    may = {"environ": dict(user.environ)}
    status = "patch ddpjobs --subresource=status"
    for what in ("create pods", "create secrets", "create jobs", "patch jobs", status, "get secrets"):
        assert kubectl(user, "auth", "can-i", *what.split(), code=None, **may).strip() == "no", what

    def apply(name: str, **changes: Any) -> None:
        job = {**SMALL, **SLEEPER, "image": user.image, **changes}
        item = {"apiVersion": job_kinds.API_VERSION, "kind": job_kinds.KIND, "metadata": {"name": name}, "spec": job}
        kubectl(user, "create", "-f", "-", stdin=json.dumps(item), **may)

    other = user.api.create(
        user.path("v1", "services"), {"metadata": {"name": "taken-store"}, "spec": {"ports": [{"port": 80}]}}
    )
    apply("taken")
    apply("elsewhere", nnodes=1, podTemplate={"metadata": {"namespace": "default"}})
    apply("huge", env={f"LONG_{number}": "x" * 4000 for number in range(200)})
    apply("last", nnodes=1)
    until("the last one", lambda: phase(user, "last") == "Running")
    until("the pod, in this namespace", lambda: phase(user, "elsewhere") == "Running")
    for name, sentence in {"taken": "another Service", "huge": "a cluster stores"}.items():
        valid = until(f"a verdict on {name}", lambda name=name: condition(user, name))
        assert sentence in valid, name
    assert user.api.get(user.path("v1", "services", "taken-store"))["metadata"]["uid"] == other["metadata"]["uid"]
    for name in ("taken", "elsewhere", "huge", "last"):
        kubectl(user, "delete", "ddp", name, **may)
    user.api.delete(user.path("v1", "services", "taken-store"), uid=other["metadata"]["uid"])


def condition(space: Namespace, name: str) -> str:
    """Return the message of the condition Valid if it is False; else an empty string."""
    valid = condition_of(get(space, name), "Valid")
    return str(valid.get("message")) if valid.get("status") == "False" else ""
