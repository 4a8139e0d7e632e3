"""The platform's admission policies on a real API server: refused and accepted objects, and their messages.

The policies are the chart's, renamed for the test and bound to the test's namespaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import NotServed, PolicyDenied
from kubectl_ddp.engines import ENGINES, EngineKind
from tests.cluster.live_cluster import Json, Namespace, namespace, until
from tests.support.policy_cases import CASES, KINDS, RULES, Case, Kind, name_of, policies

pytestmark = pytest.mark.xdist_group("policies")  # one set of namespaces for all
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
PLURALS: Final = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
NOT_DENIED: Final = {"memoryLimit": "Warn", "apiToken": "Warn", "imageDigest": "Off"}
"""Actions with which the operators' samples pass."""
SIZE: Final = ("--nnodes", "1", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi")
TAGGED: Final = ("--image", "registry.invalid/never:1", *SIZE, "--command", "true")
MOUNTED: Final = "kube-api-access-"
"""Name prefix of the token volume that admission adds."""


@dataclass(frozen=True)
class Places:
    """Namespaces with the policies bound in different ways."""

    strict: Namespace
    """Violations are denied. Pod Security is off, so that refusals come from the policies."""
    lenient: Namespace
    """Actions of :data:`NOT_DENIED`."""
    default: Namespace
    """Default values of the chart."""
    policies: list[str]


@pytest.fixture(scope="module")
def places(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    home = tmp_path_factory.mktemp("home")
    with contextlib.ExitStack() as stack:
        strict, lenient = (stack.enter_context(namespace(api, "", home, security="privileged")) for _ in range(2))
        default = stack.enter_context(namespace(api, "", home))
        wanted = [
            *policies(strict.name),
            *(policy for policy in policies(lenient.name, **NOT_DENIED) if policy["kind"].endswith("Binding")),
            *(policy for policy in policies(default.name, imageDigest="Off") if policy["kind"].endswith("Binding")),
        ]
        paths = [stack.enter_context(_made(api, item, tag=strict.name)) for item in wanted]
        made = Places(
            strict, lenient, default, [path for path in paths if PLURALS["ValidatingAdmissionPolicy"] in path]
        )
        _wait(made)
        yield made


@contextlib.contextmanager
def _made(api: Api, item: Json, tag: str) -> Iterator[str]:
    """Create a policy or binding under a unique name, and yield its path."""
    spec, path = item["spec"], f"{ADMISSION}/{PLURALS[item['kind']]}"
    name = f"{item['metadata']['name']}-{tag}"
    if "policyName" in spec:
        spec["policyName"] = name
        [chosen] = spec["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"]
        name = f"{name}-{chosen.rpartition('-')[2]}"
    item["metadata"]["name"] = name
    uid = api.create(path, item)["metadata"]["uid"]
    try:
        yield f"{path}/{name}"
    finally:
        api.delete(f"{path}/{name}", uid=uid)


def _wait(places: Places) -> None:
    """Wait until the API server has read every binding, which it does about once a second."""
    for rule in RULES:
        case = next(case for case in CASES if case.rule == rule and case.fields)
        until(f"{rule} is denied", lambda case=case: refusal(places.strict, KINDS[1], case))
        if rule not in NOT_DENIED:
            until(f"{rule} is denied", lambda case=case: refusal(places.lenient, KINDS[1], case))
        elif NOT_DENIED[rule] == "Warn":
            until(f"{rule} is warned of", lambda case=case: warnings(places.lenient, KINDS[1].of(case)))
        if rule != "imageDigest":
            until(f"{rule} is denied", lambda case=case: refusal(places.default, KINDS[1], case))


def refusal(space: Namespace, kind: Kind, case: Case) -> str:
    """Return the message of the policy that refuses an object; empty if all accept it."""
    item = kind.of(case)
    try:
        space.api.create(space.path(item["apiVersion"], kind.plural), item, dryRun="All")
    except PolicyDenied as refused:
        return refused.policy_message if refused.policy.startswith(name_of(case.rule)) else str(refused)
    return ""


def warnings(space: Namespace, item: Json, plural: str = "jobs") -> list[str]:
    """Return the policies' warnings when the API server accepts an object."""
    messages: list[str] = []
    space.api.with_warning_handler(messages.append).create(space.path(item["apiVersion"], plural), item, dryRun="All")
    return [entry for entry in messages if "ValidatingAdmissionPolicy" in entry]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_the_api_server_refuses_what_the_evaluator_of_this_machine_refuses(places: Places, kind: Kind) -> None:
    space = places.strict
    with contextlib.suppress(NotServed):
        for case in (item for item in CASES if not item.needs_more):
            report = refusal(space, kind, case)
            if kind.plural == "pods" and not case.in_pods:  # admission has mounted the token under a generated name
                assert report.startswith(f"spec.volumes[{MOUNTED}"), case.name
            elif fields := kind.fields(case):
                assert report.startswith(f"{', '.join(fields)}: "), case.name
            else:
                assert report == "", case.name


def test_the_api_server_finds_nothing_wrong_with_the_types_in_the_policies(places: Places) -> None:
    for path in places.policies:
        status = until(path, lambda path=path: places.strict.api.get(path).get("status"))
        assert status["typeChecking"] == {}, path


def test_a_submission_against_a_policy_is_refused_in_a_sentence_with_the_way_out(places: Places) -> None:
    space = places.strict
    for flag in ("--preflight=off", "--preflight=strict", "--dry-run=server"):
        done = space.ddp("submit", "--name", "tagged", *TAGGED, flag)
        assert done.code == (4 if "strict" in flag else 5), (flag, done.err)
        assert f"policy '{name_of('imageDigest')}-{space.name}'" in done.err
        assert "image 'registry.invalid/never:1': an image needs a digest; write NAME@sha256:" in done.err
        assert "Request the missing one" not in done.err
    assert space.left() == []


def test_what_a_policy_warns_of_is_passed_on_and_a_label_lets_a_namespace_off(places: Places) -> None:
    space = places.lenient
    bare = KINDS[1].of(next(case for case in CASES if case.name == "no-resources"))
    [report] = warnings(space, bare)
    assert "spec.template.spec.containers[main].resources.limits.memory: " in report
    path = f"/api/v1/namespaces/{space.name}"
    space.api.merge(path, {"metadata": {"labels": {"ddp.dev/allow-memory-limit": "true"}}})
    until("no warning", lambda: not warnings(space, bare))
    space.api.merge(path, {"metadata": {"labels": {"ddp.dev/allow-memory-limit": None}}})


@pytest.mark.parametrize("sample", ["pytorchjob", "jobset", "trainingruntime"])
def test_jobs_as_the_operators_show_them_pass_where_the_platform_says_so(places: Places, sample: str) -> None:
    """The operators' samples have no limit, no digest, and the default token."""
    container = {"image": "registry.invalid/mnist:latest", "command": ["python3", "mnist.py", "--epochs=1"]}
    kind = next(kind for kind in KINDS if kind.plural.startswith(sample))
    item = kind.make({"restartPolicy": "OnFailure", "containers": [{**container, "name": kind.main}]})
    item.setdefault("metadata", {})["name"] = "sample"
    try:
        report = warnings(places.lenient, item, kind.plural)
    except NotServed:
        pytest.skip(f"This cluster does not serve {kind.plural}.")
    assert {name for name in map(name_of, RULES) if any(f"'{name}-" in entry for entry in report)} == {
        name_of("memoryLimit"),
        name_of("apiToken"),
    }
    with pytest.raises(PolicyDenied):
        warnings(places.default, item, kind.plural)


def test_jobs_of_every_engine_run_under_the_policies_as_the_chart_comes(places: Places, image: str) -> None:
    space = places.default
    served = [engine for engine, root in ENGINES.items() if _serves(space, root)]

    def run(engine: str) -> None:
        words = ("--image", image, *SIZE, "--engine", engine, "--preflight=strict", "--command", "true")
        space.ddp("submit", "--name", engine, *words, "--wait").ok()

    with ThreadPoolExecutor(len(served)) as pool:
        list(pool.map(run, served))


def _serves(space: Namespace, root: EngineKind) -> bool:
    with contextlib.suppress(NotServed):
        space.api.get(space.path(root.api_version, root.plural))
        return True
    return False
