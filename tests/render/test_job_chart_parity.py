"""``render -o helm-values`` and ``charts/ddp-job`` make the very objects that ``submit`` and ``render`` create."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ddp_trainer.common.constants import FIELD_MANAGER, Annotation, Label
from kubectl_ddp.code.archive import ARCHIVE, Code, code_parts
from kubectl_ddp.code.script import read_script
from kubectl_ddp.errors import DdpError
from kubectl_ddp.fabrics.registry import fabrics
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import render
from kubectl_ddp.render.helm_values import DEFAULTS, helm_values, to_text
from kubectl_ddp.render.objects import placeholder_run_id
from kubectl_ddp.render.secret import PLACEHOLDER
from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.value_source import Given, Kind, Origin
from kubectl_ddp.values.engine import Engine, Gang
from kubectl_ddp.values.program import Script
from kubectl_ddp.version import default_image
from tests.support.helm import CHARTS, KUBERNETES, ROOT, Done, Helm, objects_of
from tests.support.job_values import Scenario, dotted, scenario
from tests.support.rendered import templates, without_secret
from tools.docs.examples import JOB_FILE, targets

CHART: Final = CHARTS / "ddp-job"
EXAMPLES: Final = ROOT / "manifests" / "examples"
SEED: Final = 11
PER_TEST: Final = 12
TESTS: Final = 24
"""Of these many scenarios each."""
YAML_IN_SCHEMAS: Final = (3, 18, 0)
"""The first Helm that does not read values as YAML once more for their schema, which may hold no control characters."""
CONTROL: Final = re.compile(r"\\u(?:00[01789][0-9a-f]|feff)")
APP_VERSION: Final = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
BY_HAND: Final = frozenset({"podMonitor", "runId", "runSecret"})
"""Values without a key of the job file."""


def job_of(case: Scenario) -> JobSpec | None:
    """The job of a scenario; None if it is not sound."""
    layer = {key: Given(value, Origin(Kind.FILE, "job")) for key, value in dotted(case.values).items()}
    try:
        return resolve([layer], DefaultingContext(image=f"ddp-trainer:{APP_VERSION}")).spec
    except DdpError:
        return None


def as_the_plugins(objects: list[Object], release: str) -> list[Object]:
    """The chart's objects without the metadata of a release.

    What a List holds Helm makes before a TrainJob; each object names its release; and an upgrade reads a digest. All of
    that is metadata of the objects, none of it of a pod. The secret of the run is random.
    """
    flat = [item for each in objects for item in (each["items"] if each["kind"] == "List" else [each])]
    for item in flat:
        labels = item["metadata"]["labels"]
        assert labels.pop("app.kubernetes.io/name") == "ddp-job"
        assert labels.pop("app.kubernetes.io/instance") == release
        assert labels.pop("app.kubernetes.io/version") == APP_VERSION
        assert labels.pop("helm.sh/chart").startswith("ddp-job-")
        assert labels[Label.MANAGED_BY] == "Helm"
        labels[Label.MANAGED_BY] = FIELD_MANAGER
        if job_kinds.kind_of(item) is not None:
            assert len(item["metadata"]["annotations"].pop("ddp.dev/rendered")) == 64
    return without_secret(flat)


def keyed(objects: list[Object]) -> dict[tuple[str, str], Object]:
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    assert len(found) == len(objects)
    return found


def template(helm: Helm, text: str, release: str, namespace: str) -> Done:
    words = ["template", release, str(CHART), "--namespace", namespace, "--values", "-"]
    return helm.run(*words, f"--kube-version={KUBERNETES}", stdin=text)


def check(helm: Helm, case: Scenario) -> None:
    if helm.version < YAML_IN_SCHEMAS:
        case = dataclasses.replace(case, values=json.loads(CONTROL.sub("", json.dumps(case.values))))
    if (spec := job_of(case)) is None:
        return
    said = f"seed {SEED}, scenario {case.number}: {case}"
    run_id = placeholder_run_id(spec, case.code)
    wanted = render(spec, run_id, code=case.code, api_servers=case.api_servers, run_secret=PLACEHOLDER)
    for item in wanted:
        item["metadata"].setdefault("namespace", case.namespace)  # a release is always in one
    values = helm_values(spec, case.code, case.api_servers)
    text = to_text(values)
    assert yaml.safe_load(text) == values, said
    done = template(helm, text, case.release, case.namespace)
    assert done.code == 0, f"{said}\n{text}\n{done.err}"
    found = keyed(as_the_plugins(objects_of(done.out), case.release))
    assert found.keys() == keyed(wanted).keys(), said
    for key, item in keyed(wanted).items():
        assert found[key] == item, f"{said}\n{key}"
    for each in templates(wanted):
        names_stand_once(each["spec"])


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


@pytest.mark.parametrize("first", range(0, TESTS * PER_TEST, PER_TEST))
def test_a_release_has_the_objects_of_the_plugin(each_helm: Helm, first: int) -> None:
    print(f"seed {SEED}")
    for number in range(first, first + PER_TEST):
        if number % 2 == each_helm.major % 2:  # each Helm renders its half
            check(each_helm, scenario(SEED, number))


@pytest.mark.parametrize("values", [{"code": "src", "module": "vision.train"}, {"script": "scripts/train.py"}])
def test_a_release_cuts_an_archive_as_the_plugin_does(each_helm: Helm, values: dict[str, str]) -> None:
    code = Code(ARCHIVE, "QUJD" * 700_000)
    assert len(code_parts("run", code)) == 3
    check(each_helm, Scenario(0, {"name": "run", **values}, code, "run", "team-a", ()))


def test_the_scenarios_reach_every_value_engine_gang_and_fabric() -> None:
    cases = [scenario(SEED, number) for number in range(TESTS * PER_TEST)]
    sound = [(case, spec) for case in cases if (spec := job_of(case)) is not None]
    assert len(sound) >= 200
    assert {spec.engine for _, spec in sound} == set(Engine)
    assert {spec.gang for _, spec in sound} == set(Gang)
    assert {name for _, spec in sound for name in spec.fabric.split("+")} >= {"none", *fabrics()}
    written = {key for case, spec in sound for key in helm_values(spec, case.code, case.api_servers)}
    assert written == {*chart_defaults()} - BY_HAND


def chart_defaults() -> dict[str, Any]:
    defaults: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return defaults


def test_what_is_left_out_is_the_charts_default() -> None:
    defaults = chart_defaults()
    for key, value in DEFAULTS.items():
        if isinstance(value, dict):
            assert {name: defaults[key][name] for name in value} == value
        else:
            assert defaults[key] == value


@pytest.mark.parametrize(
    ("job_file", "engine", "kept"),
    [
        pytest.param(job_file, engine, kept, id=f"{engine}-{kept.name}")
        for job_file in sorted(EXAMPLES.glob(f"*{JOB_FILE}"))
        for engine, kept in targets(job_file).items()
    ],
)
def test_an_example_as_a_release_is_the_same_job(each_helm: Helm, job_file: Path, engine: Engine, kept: Path) -> None:
    spec = dataclasses.replace(resolve([read(str(job_file))], DefaultingContext(image=default_image())).spec)
    spec, code = dataclasses.replace(spec, engine=engine), None
    if isinstance(spec.program, Script):
        code = read_script(spec.program.path)
        spec = dataclasses.replace(spec, program=Script(code.file))
    done = template(each_helm, to_text(helm_values(spec, code)), "run", "team-a").ok()
    wanted = keyed(objects_of(kept.read_text(encoding="utf-8")))
    for item in wanted.values():
        item["metadata"].setdefault("namespace", "team-a")
    assert keyed(as_the_plugins(objects_of(done.out), "run")) == wanted


def test_values_that_are_changed_in_place_change_the_job_that_kubectl_ddp_reads(helm: Helm) -> None:
    spec = resolve([read(str(EXAMPLES / f"digits{JOB_FILE}"))], DefaultingContext(image="trainer:1")).spec
    before, after = (
        job_kinds.root_of(objects_of(template(helm, to_text(values), "run", "team-a").ok().out))["metadata"]
        for values in (helm_values(spec), helm_values(spec) | {"nnodes": 3, "args": ["train"]})
    )
    assert before["labels"][Label.RUN_ID] != after["labels"][Label.RUN_ID]
    document = json.loads(after["annotations"][Annotation.SPEC])
    assert (document["nnodes"], document["args"]) == ("3", ["train"])
