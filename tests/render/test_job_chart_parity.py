"""``charts/ddp-job`` renders what the plugin renders, and refuses what it refuses, in its words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ddp_trainer.common.constants import FIELD_MANAGER, SECRET_KEY, Annotation, Label
from kubectl_ddp.chart.constants import RENDERED
from kubectl_ddp.chart.keys import CHARTS_OWN, keys
from kubectl_ddp.errors import DdpError, PreflightFailed
from kubectl_ddp.fabrics.registry import FABRICS
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Code, render
from kubectl_ddp.render.choose import Facts, resolve_auto
from kubectl_ddp.render.objects import placeholder_run_id
from kubectl_ddp.render.secret import PLACEHOLDER
from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.presets import PRESETS
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.shared_presets import CONFIG_MAP, SharedPresets
from kubectl_ddp.spec.value_source import Given, Kind, Origin
from kubectl_ddp.values.engine import Engine, Gang
from tests.support.helm import CHARTS, ROOT, Done, Helm, objects_of
from tests.support.job_values import (
    ANY_CLUSTER,
    DEVICES_OF_DRIVERS,
    ENGINES,
    GANGS,
    KUEUE,
    MONITORS,
    Scenario,
    dotted,
    scenario,
)
from tests.support.namespace_presets import SHARED, SOUND, UNREADABLE, chart_that_knows_them
from tests.support.rendered import templates, without_secret
from tools.examples import JOB_FILE, targets

CHART: Final = CHARTS / "ddp-job"
EXAMPLES: Final = ROOT / "manifests" / "examples"
SEED: Final = 8
PER_TEST: Final = 12
TESTS: Final = 24
"""Of these many scenarios each."""
YAML_IN_SCHEMAS: Final = (3, 18, 0)
"""The first Helm that does not read values as YAML once more for their schema, which may hold no control characters."""
CONTROL: Final = re.compile(r"\\u(?:00[01789][0-9a-f]|feff)")
APP_VERSION: Final = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


def expected(case: Scenario) -> list[Object] | str:
    """What the plugin makes of the values: objects, or the sentence in which it refuses them."""
    try:
        objects = by_the_plugin(case)
        return missing(objects, case) or objects
    except PreflightFailed as error:  # names the context, which a chart does not know
        return "Nobody in the cluster starts nodes" if "starts nodes" in error.message else "The cluster can run no job"
    except DdpError as error:
        said, no_yaml, _ = error.message.removeprefix("values, ").partition("it is no YAML")
        return said + no_yaml  # what is wrong with it, Go and Python tell in words of their own


def missing(objects: list[Object], case: Scenario) -> str:
    """What submit says where the cluster lacks a kind of object, or what its preflight says without Kueue."""
    if not case.is_of_cluster:
        return ""
    for item in objects:
        group, kind = item["apiVersion"], item["kind"]
        served = f"{group}/{kind}"
        if served in {*ENGINES.values(), *GANGS.values(), *DEVICES_OF_DRIVERS} and served not in case.serves:
            return f"The cluster does not know {item['kind']} ({item['apiVersion']})."
    is_queued = KUEUE_QUEUE in job_kinds.root_of(objects)["metadata"]["labels"]
    return "is Kueue's, and the cluster has no Kueue" if is_queued and KUEUE not in case.serves else ""


def by_the_plugin(case: Scenario) -> list[Object]:
    values = case.values
    said = {"name": case.release} | {
        key: value for key, value in values.items() if key not in {*CHARTS_OWN} - {"preset"}
    }
    layer = {key: Given(value, Origin(Kind.FILE, "values")) for key, value in dotted(said).items()}
    place = f"the ConfigMap '{CONFIG_MAP}' in namespace '{case.namespace}'"
    shared = SharedPresets(place, SHARED if case.is_of_cluster else {})
    spec = resolve([layer], DefaultingContext(image=f"ddp-trainer:{APP_VERSION}", shared=lambda _: shared)).spec
    if case.is_of_cluster:
        kinds = {tuple(kind.rsplit("/", 1)) for kind in (*ENGINES.values(), *GANGS.values()) if kind in case.serves}
        spec = resolve_auto(spec, Facts("here", case.kubernetes, frozenset({*kinds, ("batch/v1", "Job")})))  # type: ignore[arg-type]
    code = None
    if "code" in values:
        code = Code("code.tar.gz", values["codeArchive"])
    elif "script" in values:
        code = Code(values["script"].rpartition("/")[2], values["scriptText"])
    run_id = values.get("runId") or placeholder_run_id(spec, code)
    objects = render(spec, run_id, code=code, api_servers=values.get("apiServers", ()), run_secret=PLACEHOLDER)
    if name := values.get("runSecret"):
        objects = [item for item in objects if item["kind"] != "Secret"]
        for template in templates(objects):
            [volume] = [each for each in template["spec"]["volumes"] if each["name"] == SECRET_KEY]
            volume["secret"]["secretName"] = name
    wanted = values.get("podMonitor", "auto")
    is_served = not case.is_of_cluster or MONITORS in case.serves
    has_monitor = wanted == "always" or (wanted == "auto" and is_served)
    return [item for item in objects if item["kind"] != "PodMonitor" or has_monitor]


def as_the_plugins(objects: list[Object], case: Scenario) -> list[Object]:
    """The chart's objects without what only a chart's can have.

    Helm makes objects kind by kind, and what a List holds before a TrainJob; it says of each that it has made it; and
    an upgrade has to know what is there. All of that stands in the objects' own metadata, none of it in a pod's. The
    secret of the run is random.
    """
    flat = [item for each in objects for item in (each["items"] if each["kind"] == "List" else [each])]
    for item in flat:
        labels = item["metadata"]["labels"]
        assert labels.pop("app.kubernetes.io/name") == "ddp-job"
        assert labels.pop("app.kubernetes.io/instance") == case.release
        assert labels.pop("app.kubernetes.io/version") == APP_VERSION
        assert labels.pop("helm.sh/chart").startswith("ddp-job-")
        assert labels[Label.MANAGED_BY] == "Helm"
        labels[Label.MANAGED_BY] = FIELD_MANAGER
        if job_kinds.kind_of(item) is not None:
            assert len(item["metadata"]["annotations"].pop(RENDERED)) == 64
    return without_secret(flat)


def keyed(objects: list[Object]) -> dict[tuple[str, str], Object]:
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    assert len(found) == len(objects)
    return found


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, in a namespace that shares presets."""
    return chart_that_knows_them(tmp_path_factory.mktemp("chart"))


def rendered(helm: Helm, chart: Path, case: Scenario) -> Done:
    return helm.render(
        chart,
        case.values,
        release=case.release,
        namespace=case.namespace,
        serves=case.serves,
        kubernetes="{}.{}.0".format(*case.kubernetes),
    )


@pytest.mark.parametrize("first", range(0, TESTS * PER_TEST, PER_TEST))
def test_the_chart_makes_of_values_what_the_plugin_does(each_helm: Helm, chart: Path, first: int) -> None:
    for number in range(first, first + PER_TEST):
        if number % 2 == each_helm.major % 2:  # each Helm renders its half
            check(each_helm, chart, scenario(SEED, number))


@pytest.mark.parametrize("preset", SHARED)
def test_a_shared_preset_is_taken_or_refused_as_the_plugin_does(helm: Helm, chart: Path, preset: str) -> None:
    values = {"module": "vision.train", "preset": preset, "engine": "job", "podMonitor": "never"}
    case = Scenario(0, values, "run", "team-a", (ANY_CLUSTER,))
    assert isinstance(expected(case), str) is (preset in UNREADABLE)
    check(helm, chart, case)


@pytest.mark.parametrize(
    ("preset", "said"),
    [("small", {"env": {"A": "", "B": ""}}), ("machine", {"nodeSelector": {"example.com/pool": ""}})],
)
def test_an_empty_value_of_a_map_wins_over_a_shared_preset(
    helm: Helm, chart: Path, preset: str, said: dict[str, Any]
) -> None:
    values = {"module": "vision.train", "preset": preset, "engine": "job", "podMonitor": "never", **said}
    case = Scenario(0, values, "run", "team-a", (ANY_CLUSTER,))
    (key, given), wanted = next(iter(said.items())), expected(case)
    assert not isinstance(wanted, str)
    document = json.loads(job_kinds.root_of(wanted)["metadata"]["annotations"][Annotation.SPEC])
    assert given.items() <= document[key].items()
    check(helm, chart, case)


def test_the_scenarios_reach_every_value_engine_gang_and_fabric() -> None:
    cases = [scenario(SEED, number) for number in range(TESTS * PER_TEST)]
    sound = [(case, objects) for case in cases if not isinstance(objects := expected(case), str)]
    assert len(sound) >= 200
    assert {key for case, _ in sound for key in case.values} >= keys().keys()
    documents = [
        json.loads(job_kinds.root_of(objects)["metadata"]["annotations"][Annotation.SPEC]) for _, objects in sound
    ]
    assert {document["engine"] for document in documents} == set(Engine)
    assert {document["gang"] for document in documents} == set(Gang)
    assert {name for document in documents for name in document["fabric"].split("+")} >= {"none", *FABRICS}
    assert {case.values.get("preset") for case, _ in sound} >= {*PRESETS, *SOUND}
    assert {case.values.get("preset") for case in cases} & {*UNREADABLE}


def check(helm: Helm, chart: Path, case: Scenario) -> None:
    if helm.version < YAML_IN_SCHEMAS:
        case = replace(case, values=json.loads(CONTROL.sub("", json.dumps(case.values))))
    said = f"seed {SEED}, scenario {case.number}: {case}"
    wanted = expected(case)
    done = rendered(helm, chart, case)
    if isinstance(wanted, str):
        assert done.code != 0, f"{said}\nthe plugin refuses it: {wanted}"
        assert wanted in " ".join(done.err.split("\n")), f"{said}\n{done.err}"
        return
    assert done.code == 0, f"{said}\n{done.err}"
    found = keyed(as_the_plugins(objects_of(done.out), case))
    assert found.keys() == keyed(wanted).keys(), said
    for key, item in keyed(wanted).items():
        assert found[key] == item, f"{said}\n{key}"
    for template in templates(wanted):
        names_stand_once(template["spec"])


def names_stand_once(pod: Any) -> None:
    """A server-side apply refuses a second one; helm template does not."""
    lists = [pod["volumes"]] if "volumes" in pod else []
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        lists += [container.get(key, []) for key in ("env", "ports")]
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        assert len(set(paths)) == len(paths), paths
    for each in lists:
        names = [item["name"] for item in each]
        assert len(set(names)) == len(names), names


@pytest.mark.parametrize(
    ("job_file", "engine", "kept"),
    [
        pytest.param(job_file, engine, kept, id=kept.name)
        for job_file in sorted(EXAMPLES.glob(f"*{JOB_FILE}"))
        for engine, kept in targets(job_file).items()
    ],
)
def test_a_job_file_may_be_given_as_it_is(each_helm: Helm, job_file: Path, engine: Engine, kept: Path) -> None:
    words = ["--values", str(job_file), "--set", f"engine={engine}"]
    if script := re.search(r"^script: (.*)$", job_file.read_text(encoding="utf-8"), re.MULTILINE):
        words += ["--set-file", f"scriptText={EXAMPLES / script[1]}"]
    objects = each_helm.template(CHART, {}, release="run", kubernetes="1.34.0", words=words)
    found = keyed(as_the_plugins(objects, Scenario(0, {}, "run", "ddp-system")))
    assert found == keyed(objects_of(kept.read_text(encoding="utf-8")))
